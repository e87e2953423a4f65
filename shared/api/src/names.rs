//! Names shared across the ecosystem. Never spell one out elsewhere.

/// API group of all Kyma kinds.
pub const GROUP: &str = "operator.kyma-project.io";
/// Served and stored version.
pub const VERSION: &str = "v1beta2";
/// `apiVersion` of all Kyma kinds.
pub const API_VERSION: &str = "operator.kyma-project.io/v1beta2";

/// Namespace in KCP.
pub const KCP_NAMESPACE: &str = "kcp-system";
/// Namespace in a runtime.
pub const RUNTIME_NAMESPACE: &str = "kyma-system";
/// Name of the Kyma in a runtime.
pub const RUNTIME_KYMA_NAME: &str = "default";
/// Channel if neither module nor Kyma names one.
pub const DEFAULT_CHANNEL: &str = "regular";
/// Never a valid channel: the legacy value for "no channel".
pub const CHANNEL_NONE: &str = "none";

/// Secret in KCP with the CA of agents and receiver.
pub const CA_SECRET: &str = "tidewatch-ca";
/// Annotation of [`CA_SECRET`] that requests a rotation of the CA.
pub const ROTATE_CA: &str = "tidewatch.kyma-project.io/rotate-ca";
/// Secret in KCP with the receiver's certificate.
pub const SERVER_SECRET: &str = "tidewatch-server";
/// ConfigMap in KCP with the runtimes whose certificates are revoked: runtime id → time.
pub const REVOCATIONS: &str = "tidewatch-revocations";
/// Name of the agent's Deployment and service account in [`RUNTIME_NAMESPACE`].
pub const AGENT_NAME: &str = "tidewatch-agent";
/// `ConfigMap` in [`RUNTIME_NAMESPACE`] with the agent's file and the receiver's CAs.
pub const AGENT_SETTINGS: &str = "tidewatch-agent";
/// Secret in [`RUNTIME_NAMESPACE`] with the agent's key and certificate.
pub const AGENT_IDENTITY_SECRET: &str = "tidewatch-agent-identity";
/// The agent's `CertificateSigningRequest`.
pub const AGENT_SIGNING_REQUEST: &str = "tidewatch-agent";
/// `ConfigMap` in [`RUNTIME_NAMESPACE`] with the agent's watches.
pub const AGENT_CONFIG_MAP: &str = "tidewatch-agent-config";
/// Key in [`AGENT_CONFIG_MAP`].
pub const AGENT_CONFIG_KEY: &str = "watches.yaml";
/// `ClusterRole` and binding for the agent's watches.
pub const AGENT_WATCHES_ROLE: &str = "tidewatch-agent-watches";

/// Label keys and fixed values.
pub mod labels {
    /// Controller of a module's Manifest; empty in practice.
    pub const CONTROLLER_NAME: &str = "operator.kyma-project.io/controller-name";
    /// Channel of a Manifest.
    pub const CHANNEL: &str = "operator.kyma-project.io/channel";
    /// [`MANAGED_BY_KCP`] or [`MANAGED_BY_RUNTIME`].
    pub const MANAGED_BY: &str = "operator.kyma-project.io/managed-by";
    /// [`MANAGED_BY`] in KCP.
    pub const MANAGED_BY_KCP: &str = "lifecycle-manager";
    /// [`MANAGED_BY`] in a runtime.
    pub const MANAGED_BY_RUNTIME: &str = "kyma";
    /// KCP Kyma of a Manifest or kubeconfig Secret.
    pub const KYMA_NAME: &str = "operator.kyma-project.io/kyma-name";
    /// Module of the object.
    pub const MODULE_NAME: &str = "operator.kyma-project.io/module-name";
    /// Marks each Manifest and ModuleTemplate of a mandatory module.
    pub const MANDATORY_MODULE: &str = "operator.kyma-project.io/mandatory-module";
    /// Marks runtime objects that report changes to KCP; value [`WATCHED_BY_KYMA`].
    pub const WATCHED_BY: &str = "operator.kyma-project.io/watched-by";
    /// Value of [`WATCHED_BY`].
    pub const WATCHED_BY_KYMA: &str = "kyma";
    /// Purpose of a certificate; value [`PURPOSE_WATCHER_CERT`].
    pub const PURPOSE: &str = "operator.kyma-project.io/purpose";
    /// [`PURPOSE`] of the watchers' certificates.
    pub const PURPOSE_WATCHER_CERT: &str = "klm-watcher-cert-manager";
    /// `true` on a Kyma or Manifest: not reconciled.
    pub const SKIP_RECONCILIATION: &str = "operator.kyma-project.io/skip-reconciliation";
    /// `true`: an internal Kyma or module.
    pub const INTERNAL: &str = "operator.kyma-project.io/internal";
    /// `true`: a beta Kyma or module.
    pub const BETA: &str = "operator.kyma-project.io/beta";
    /// On the watcher's pod template: a change restarts it.
    pub const POD_RESTART_TRIGGER: &str = "operator.kyma-project.io/pod-restart-trigger";
    /// Marks the watchers' ingress gateway; value [`WATCHER_GATEWAY_DEFAULT`].
    pub const WATCHER_GATEWAY: &str = "operator.kyma-project.io/watcher-gateway";
    /// Value of [`WATCHER_GATEWAY`].
    pub const WATCHER_GATEWAY_DEFAULT: &str = "default";

    /// Service instance of the runtime.
    pub const INSTANCE_ID: &str = "kyma-project.io/instance-id";
    /// Global account of the customer.
    pub const GLOBAL_ACCOUNT_ID: &str = "kyma-project.io/global-account-id";
    /// Subaccount of the customer.
    pub const SUBACCOUNT_ID: &str = "kyma-project.io/subaccount-id";
    /// Region of the runtime.
    pub const REGION: &str = "kyma-project.io/region";
    /// Region of the platform.
    pub const PLATFORM_REGION: &str = "kyma-project.io/platform-region";
    /// Service plan of the runtime.
    pub const BROKER_PLAN_NAME: &str = "kyma-project.io/broker-plan-name";
    /// Runtime id: the CN of its agent's certificate.
    pub const RUNTIME_ID: &str = "kyma-project.io/runtime-id";

    /// On module objects: the Manifest.
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// On module objects; value [`PART_OF_KYMA`].
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    /// Value of [`PART_OF`].
    pub const PART_OF_KYMA: &str = "Kyma";
    /// Tidewatch, `true` on a KCP Kyma: use each ModuleTemplate created in its runtime.
    pub const RUNTIME_TEMPLATES: &str = "tidewatch.kyma-project.io/runtime-templates";
    /// On the runtime's namespace; value [`ENABLED`].
    pub const ISTIO_INJECTION: &str = "istio-injection";
    /// On the runtime's namespace; value [`ENABLED`].
    pub const WARDEN_VALIDATE: &str = "namespaces.warden.kyma-project.io/validate";
    /// Value of [`ISTIO_INJECTION`] and [`WARDEN_VALIDATE`].
    pub const ENABLED: &str = "enabled";
}

/// Annotation keys.
pub mod annotations {
    /// Tidewatch, on a KCP Kyma or Manifest in deletion: ignore blockers. The value is the reason.
    pub const FORCE_DELETE: &str = "tidewatch.kyma-project.io/force-delete";
    /// Tidewatch, `true` on a KCP Kyma: the agent of its runtime is not upgraded.
    pub const PAUSE_AGENT_UPGRADE: &str = "tidewatch.kyma-project.io/pause-agent-upgrade";
    /// Tidewatch, `true` on a Manifest with a ModuleTemplate created in the runtime. That is tenant input, so the
    /// Manifest gets no credentials or Secrets of KCP.
    pub const RUNTIME_TEMPLATE: &str = "tidewatch.kyma-project.io/runtime-template";
    /// On a KCP Kyma: the runtime's domain, a SAN of the agent's certificate.
    pub const SKR_DOMAIN: &str = "skr-domain";
    /// Deprecated name of [`OCM_COMPONENT_NAME`], written for older readers.
    pub const FQDN: &str = "operator.kyma-project.io/fqdn";
    /// On a Manifest: its OCM component.
    pub const OCM_COMPONENT_NAME: &str = "operator.kyma-project.io/ocm-component-name";
    /// On a ModuleTemplate: `true` if its default CR is cluster-scoped.
    pub const IS_CLUSTER_SCOPED: &str = "operator.kyma-project.io/is-cluster-scoped";
    /// On a Manifest: `true` if the module is unmanaged.
    pub const IS_UNMANAGED: &str = "operator.kyma-project.io/is-unmanaged";
    /// On a module object: requests data of the KCP Kyma.
    pub const INJECT_DATA_FROM_KCP: &str = "operator.kyma-project.io/inject-data-from-kcp";
    /// On module objects: a warning against edits.
    pub const MANAGED_DISCLAIMER: &str = "operator.kyma-project.io/managed-by-reconciler-disclaimer";
    /// Tidewatch, on a Manifest: template fields without a place in the spec, as JSON.
    pub const MODULE_TERMS: &str = "tidewatch.kyma-project.io/module";
    /// Tidewatch, on a Manifest: uid of its ModuleTemplate. A recreated template restarts at generation 1.
    pub const TEMPLATE_UID: &str = "tidewatch.kyma-project.io/template-uid";
    /// Tidewatch, on a Manifest: last Ready version before the present spec. Written only with a spec change.
    pub const RUNNING_VERSION: &str = "tidewatch.kyma-project.io/running-version";
    /// Tidewatch, `true` on a runtime's Kyma CRD that was recreated while modules are installed. The Kyma was lost with
    /// it, so its list is not the defaults. Removed when the Kyma exists again.
    pub const KYMA_LOST: &str = "tidewatch.kyma-project.io/kyma-lost";
    /// Tidewatch, `true` on a `mandatory` ModuleTemplate: its module was removed with its release. Only a release, or
    /// removing this annotation from all templates, restores the module.
    pub const MANDATORY_WITHDRAWN: &str = "tidewatch.kyma-project.io/mandatory-withdrawn";
    /// Tidewatch, on a module object that the API server stores with other values: hash of the applied ones.
    pub const APPLIED: &str = "tidewatch.kyma-project.io/applied";
    /// On runtime objects: `<namespace>/<name>` of the KCP owner.
    pub const OWNED_BY: &str = "deprecated-operator.kyma-project.io/owned-by";
    /// On a Manifest: last applied OCI reference.
    pub const SYNC_OCI_REF: &str = "sync-oci-ref";
    /// On the gateway Secret: time when the CA joined the bundle (RFC 3339).
    pub const CA_ADDED_AT: &str = "caAddedToBundleAt";
    /// On Gardener Certificates: time of the renewal request.
    pub const CERT_REQUESTED_AT: &str = "cert.gardener.cloud/requestedAt";
}

/// Finalizers.
pub mod finalizers {
    /// On a KCP Kyma, until modules and runtime objects are gone.
    pub const KYMA: &str = "operator.kyma-project.io/Kyma";
    /// On a Watcher.
    pub const WATCHER: &str = "operator.kyma-project.io/watcher";
    /// On a mandatory ModuleReleaseMeta, until no runtime has the module.
    pub const MANDATORY_MODULE: &str = "operator.kyma-project.io/mandatory-module";
    /// On a Manifest, until its runtime objects are gone.
    pub const MANIFEST: &str = "declarative.kyma-project.io/finalizer";
    /// On a Manifest, until an unmanaged module has lost its labels.
    pub const LABEL_REMOVAL: &str = "label-removal-finalizer";
    /// On a Manifest, until its default CR is gone.
    pub const DEFAULT_CR: &str = "resource.kyma-project.io/finalizer";
    /// Legacy: remove it from engine-owned objects.
    pub const LEGACY_PURGE: &str = "operator.kyma-project.io/purge-finalizer";
    /// Owned by another component: never touch.
    pub const RUNTIME_MONITORING: &str = "operator.kyma-project.io/runtime-monitoring-finalizer";
}

/// Field managers of server-side apply, equal to the Go lifecycle manager's for a takeover without conflicts.
pub mod field_managers {
    /// General writes.
    pub const LIFECYCLE_MANAGER: &str = "operator.kyma-project.io/lifecycle-manager";
    /// KCP objects and status by Apply (Kyma, Manifest spec, Watcher).
    pub const KCP: &str = "lifecycle-manager";
    /// Default CR and its finalizer.
    pub const DEFAULT_CR: &str = "resource.kyma-project.io/finalizer";
    /// Module objects and their Manifest's status.
    pub const APPLIER: &str = "declarative.kyma-project.io/applier";
    /// Catalog in a runtime.
    pub const CATALOG_SYNC: &str = "catalog-sync";
    /// Tidewatch: events condition of a KCP Kyma.
    pub const EVENT_PATH: &str = "tidewatch-event-path";
    /// Tidewatch: catalog condition of a Kyma, in KCP and in the runtime.
    pub const CATALOG_STATUS: &str = "tidewatch-catalog";
    /// Kyma and namespace in a runtime.
    pub const KYMA_SYNC: &str = "kyma-sync-context";
    /// Agent configuration and role in a runtime.
    pub const AGENT: &str = "tidewatch-agent-configuration";
}

/// Condition types and reasons.
pub mod conditions {
    /// Kyma: the runtime has the CRDs.
    pub const CRDS_SYNC: &str = "CRDsSync";
    /// Kyma: all modules are ready.
    pub const MODULES: &str = "Modules";
    /// Kyma: the runtime has the catalog (each ModuleTemplate and ModuleReleaseMeta).
    pub const MODULE_CATALOG: &str = "ModuleCatalog";
    /// Kyma: the runtime has the watcher (if enabled).
    pub const SKR_WEBHOOK: &str = "SKRWebhook";
    /// Kyma: the runtime has the image pull Secret (if configured).
    pub const IMAGE_PULL_SECRET_SYNC: &str = "SKRImagePullSecretSync";
    /// Kyma, Tidewatch: runtime events are proven to arrive (`docs/reference/extensions.md`).
    pub const RUNTIME_EVENTS: &str = "RuntimeEvents";
    /// Kyma, Tidewatch: an operator has stopped all runtime writes; otherwise absent (`docs/operate/running.md`).
    pub const PAUSED: &str = "Paused";
    /// Kyma: deprecated; removed from old objects.
    pub const DEPRECATED_READY: &str = "Ready";
    /// Manifest: objects are known; reason [`REASON_RESOURCES_AVAILABLE`].
    pub const RESOURCES: &str = "Resources";
    /// Manifest: installed; reason [`REASON_READY`].
    pub const INSTALLATION: &str = "Installation";
    /// Manifest: default CR exists; reason [`REASON_MODULE_CR_CREATED`].
    pub const MODULE_CR: &str = "ModuleCR";
    /// Manifest, Tidewatch: reported state of the default CR, as reason (`docs/reference/extensions.md`).
    pub const MODULE_CR_STATE: &str = "ModuleCRState";
    /// Manifest, Tidewatch: not Ready, but was in the observed generation; reason [`REASON_READY`].
    pub const WAS_READY: &str = "WasReady";
    /// Manifest, Tidewatch: not Ready, but all self-removing Jobs have completed in the observed generation; reason
    /// [`REASON_READY`].
    pub const JOBS_COMPLETED: &str = "JobsCompleted";
    /// Watcher: its route is configured; reason [`REASON_READY`].
    pub const VIRTUAL_SERVICE: &str = "VirtualService";

    /// Reason of conditions shared with the Go manager. [`MODULES`] has a state instead while modules are not ready.
    pub const REASON_READY: &str = "Ready";
    /// Reason of [`RESOURCES`].
    pub const REASON_RESOURCES_AVAILABLE: &str = "ResourcesAvailable";
    /// Reason of [`MODULE_CR`].
    pub const REASON_MODULE_CR_CREATED: &str = "ModuleCRCreated";
}
