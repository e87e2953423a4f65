//! Exact names the ecosystem agrees on: group, namespaces, labels, annotations, finalizers,
//! field managers and condition types. Never spell one of these out elsewhere.

/// API group of all our kinds.
pub const GROUP: &str = "operator.kyma-project.io";
/// Served and stored version of all our kinds.
pub const VERSION: &str = "v1beta2";
/// `apiVersion` of all our kinds.
pub const API_VERSION: &str = "operator.kyma-project.io/v1beta2";

/// Namespace of our objects in KCP.
pub const KCP_NAMESPACE: &str = "kcp-system";
/// Namespace of our objects in a runtime.
pub const RUNTIME_NAMESPACE: &str = "kyma-system";
/// Fixed name of the Kyma object in a runtime.
pub const RUNTIME_KYMA_NAME: &str = "default";
/// Channel used where neither the module nor the Kyma names one.
pub const DEFAULT_CHANNEL: &str = "regular";
/// Channel name that is never valid: it once meant "no channel".
pub const CHANNEL_NONE: &str = "none";

/// The agent's service account in a runtime, in [`RUNTIME_NAMESPACE`].
pub const AGENT_SERVICE_ACCOUNT: &str = "tidewatch-agent";
/// The `ConfigMap` in [`RUNTIME_NAMESPACE`] that tells the agent what to watch.
pub const AGENT_CONFIG_MAP: &str = "tidewatch-agent-config";
/// The key in it.
pub const AGENT_CONFIG_KEY: &str = "watches.yaml";
/// The `ClusterRole` in a runtime, and its binding, that let the agent see what it is told to watch.
pub const AGENT_WATCHES_ROLE: &str = "tidewatch-agent-watches";

/// Label keys, and the few fixed label values.
pub mod labels {
    /// Controller of a module's Manifest; kept, but empty in practice.
    pub const CONTROLLER_NAME: &str = "operator.kyma-project.io/controller-name";
    /// Channel a Manifest was made from.
    pub const CHANNEL: &str = "operator.kyma-project.io/channel";
    /// Who manages the object: [`MANAGED_BY_KCP`] in KCP, [`MANAGED_BY_RUNTIME`] in a runtime.
    pub const MANAGED_BY: &str = "operator.kyma-project.io/managed-by";
    /// Value of [`MANAGED_BY`] on objects in KCP.
    pub const MANAGED_BY_KCP: &str = "lifecycle-manager";
    /// Value of [`MANAGED_BY`] on objects in a runtime.
    pub const MANAGED_BY_RUNTIME: &str = "kyma";
    /// Name of the KCP Kyma that an object (Manifest, kubeconfig Secret) belongs to.
    pub const KYMA_NAME: &str = "operator.kyma-project.io/kyma-name";
    /// Name of the module that an object belongs to.
    pub const MODULE_NAME: &str = "operator.kyma-project.io/module-name";
    /// Marks each Manifest and ModuleTemplate of a mandatory module.
    pub const MANDATORY_MODULE: &str = "operator.kyma-project.io/mandatory-module";
    /// Marks runtime objects whose changes are sent to KCP; value [`WATCHED_BY_KYMA`].
    pub const WATCHED_BY: &str = "operator.kyma-project.io/watched-by";
    /// Value of [`WATCHED_BY`].
    pub const WATCHED_BY_KYMA: &str = "kyma";
    /// What a certificate is for; value [`PURPOSE_WATCHER_CERT`].
    pub const PURPOSE: &str = "operator.kyma-project.io/purpose";
    /// Value of [`PURPOSE`] on the certificates of the runtimes' watchers.
    pub const PURPOSE_WATCHER_CERT: &str = "klm-watcher-cert-manager";
    /// `true` on a Kyma or Manifest: leave it alone.
    pub const SKIP_RECONCILIATION: &str = "operator.kyma-project.io/skip-reconciliation";
    /// `true`: an internal Kyma, or a module for those only.
    pub const INTERNAL: &str = "operator.kyma-project.io/internal";
    /// `true`: a Kyma that takes beta modules, or such a module.
    pub const BETA: &str = "operator.kyma-project.io/beta";
    /// On the pod template of the watcher in a runtime: changed to restart it.
    pub const POD_RESTART_TRIGGER: &str = "operator.kyma-project.io/pod-restart-trigger";
    /// Marks the ingress gateway of the watchers; value [`WATCHER_GATEWAY_DEFAULT`].
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
    /// Region of the platform that the runtime belongs to.
    pub const PLATFORM_REGION: &str = "kyma-project.io/platform-region";
    /// Service plan of the runtime.
    pub const BROKER_PLAN_NAME: &str = "kyma-project.io/broker-plan-name";
    /// Id of the runtime: the identity that its agent's certificate carries as CN.
    pub const RUNTIME_ID: &str = "kyma-project.io/runtime-id";

    /// On every object of a module: the Manifest it comes from.
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    /// On every object of a module; value [`PART_OF_KYMA`].
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    /// Value of [`PART_OF`].
    pub const PART_OF_KYMA: &str = "Kyma";
    /// Ours, `true` on a Kyma in KCP: each ModuleTemplate that is made in its runtime counts.
    pub const RUNTIME_TEMPLATES: &str = "tidewatch.kyma-project.io/runtime-templates";
    /// On the runtime's namespace; value `enabled`.
    pub const ISTIO_INJECTION: &str = "istio-injection";
    /// On the runtime's namespace; value `enabled`.
    pub const WARDEN_VALIDATE: &str = "namespaces.warden.kyma-project.io/validate";
    /// Value of [`ISTIO_INJECTION`] and [`WARDEN_VALIDATE`].
    pub const ENABLED: &str = "enabled";
}

/// Annotation keys.
pub mod annotations {
    /// Ours, on a Kyma or Manifest in KCP that is being deleted: do not wait for what blocks that; the value says why.
    pub const FORCE_DELETE: &str = "tidewatch.kyma-project.io/force-delete";
    /// Ours, `true` on a Manifest whose ModuleTemplate was made in the runtime: a tenant's, so no credentials of the
    /// centre are used for it, and no Secret of the centre comes with it.
    pub const RUNTIME_TEMPLATE: &str = "tidewatch.kyma-project.io/runtime-template";
    /// On a KCP Kyma: the runtime's domain, which the agent's certificate carries as SAN.
    pub const SKR_DOMAIN: &str = "skr-domain";
    /// Deprecated name of [`OCM_COMPONENT_NAME`], still written for older readers.
    pub const FQDN: &str = "operator.kyma-project.io/fqdn";
    /// On a Manifest: the OCM component it was made from.
    pub const OCM_COMPONENT_NAME: &str = "operator.kyma-project.io/ocm-component-name";
    /// On a ModuleTemplate: `true` when its default CR is cluster-scoped.
    pub const IS_CLUSTER_SCOPED: &str = "operator.kyma-project.io/is-cluster-scoped";
    /// On a Manifest: `true` when the user took the module over.
    pub const IS_UNMANAGED: &str = "operator.kyma-project.io/is-unmanaged";
    /// On a module's object: asks for data of the KCP Kyma to be filled in.
    pub const INJECT_DATA_FROM_KCP: &str = "operator.kyma-project.io/inject-data-from-kcp";
    /// On every object of a module: tells people not to edit it.
    pub const MANAGED_DISCLAIMER: &str = "operator.kyma-project.io/managed-by-reconciler-disclaimer";
    /// Ours, on a Manifest: what its ModuleTemplate says besides what the Manifest's spec has room for, as JSON.
    pub const MODULE_TERMS: &str = "tidewatch.kyma-project.io/module";
    /// Ours, on a Manifest: the uid of the ModuleTemplate whose version it has. One that is deleted and made anew under the same
    /// name begins with generation 1 again.
    pub const TEMPLATE_UID: &str = "tidewatch.kyma-project.io/template-uid";
    /// Ours, on a Manifest: the version that was last Ready before its present spec. Written with the change of the spec, and left there.
    pub const RUNNING_VERSION: &str = "tidewatch.kyma-project.io/running-version";
    /// Ours, `true` on the CRD of the Kyma in a runtime that was made again where modules are installed: the Kyma was lost with it,
    /// and its list is not the defaults. Goes when the Kyma is there again.
    pub const KYMA_LOST: &str = "tidewatch.kyma-project.io/kyma-lost";
    /// Ours, `true` on a ModuleTemplate that says `mandatory`: the release that governed its module was deleted, and the module with it.
    /// The templates of the module do not make it mandatory again; a release does, and so does taking this off all of them.
    pub const MANDATORY_WITHDRAWN: &str = "tidewatch.kyma-project.io/mandatory-withdrawn";
    /// Ours, on a module's object that the API server stores with other values than those that were applied: their hash.
    pub const APPLIED: &str = "tidewatch.kyma-project.io/applied";
    /// On runtime objects: `<namespace>/<name>` of the owner in KCP.
    pub const OWNED_BY: &str = "deprecated-operator.kyma-project.io/owned-by";
    /// On a Manifest: the OCI reference that was last applied.
    pub const SYNC_OCI_REF: &str = "sync-oci-ref";
    /// On the gateway Secret: when the CA was added to the bundle (RFC 3339).
    pub const CA_ADDED_AT: &str = "caAddedToBundleAt";
    /// On Gardener's Certificates: when a renewal was asked for.
    pub const CERT_REQUESTED_AT: &str = "cert.gardener.cloud/requestedAt";
}

/// Finalizers.
pub mod finalizers {
    /// On a KCP Kyma, until its modules and its runtime objects are gone.
    pub const KYMA: &str = "operator.kyma-project.io/Kyma";
    /// On a Watcher.
    pub const WATCHER: &str = "operator.kyma-project.io/watcher";
    /// On a mandatory ModuleReleaseMeta, until the module is gone everywhere.
    pub const MANDATORY_MODULE: &str = "operator.kyma-project.io/mandatory-module";
    /// On a Manifest, until its objects are gone from the runtime.
    pub const MANIFEST: &str = "declarative.kyma-project.io/finalizer";
    /// On a Manifest, until its labels are removed from a module the user took over.
    pub const LABEL_REMOVAL: &str = "label-removal-finalizer";
    /// On a Manifest, until its default CR is gone from the runtime.
    pub const DEFAULT_CR: &str = "resource.kyma-project.io/finalizer";
    /// Legacy, never written any more: remove where found on our own objects.
    pub const LEGACY_PURGE: &str = "operator.kyma-project.io/purge-finalizer";
    /// Set by another component: never touch.
    pub const RUNTIME_MONITORING: &str = "operator.kyma-project.io/runtime-monitoring-finalizer";
}

/// Field managers of server-side apply. Taking over from the Go lifecycle manager without
/// conflicts depends on the same names.
pub mod field_managers {
    /// General writes of the lifecycle manager.
    pub const LIFECYCLE_MANAGER: &str = "operator.kyma-project.io/lifecycle-manager";
    /// KCP objects and their status by Apply (Kyma, Manifest spec, Watcher).
    pub const KCP: &str = "lifecycle-manager";
    /// Default CR and its finalizer.
    pub const DEFAULT_CR: &str = "resource.kyma-project.io/finalizer";
    /// A module's objects in the runtime, and the status of its Manifest.
    pub const APPLIER: &str = "declarative.kyma-project.io/applier";
    /// The catalog in a runtime: each ModuleTemplate and ModuleReleaseMeta.
    pub const CATALOG_SYNC: &str = "catalog-sync";
    /// Ours: the condition about a runtime's events on its Kyma in KCP.
    pub const EVENT_PATH: &str = "tidewatch-event-path";
    /// Ours: the condition about a runtime's catalog on its Kyma, in KCP and in the runtime.
    pub const CATALOG_STATUS: &str = "tidewatch-catalog";
    /// The Kyma and the namespace in a runtime.
    pub const KYMA_SYNC: &str = "kyma-sync-context";
    /// The configuration and the role of the agent in a runtime.
    pub const AGENT: &str = "tidewatch-agent-configuration";
}

/// Condition types, and the reasons that go with them.
pub mod conditions {
    /// Kyma: CRDs are in the runtime.
    pub const CRDS_SYNC: &str = "CRDsSync";
    /// Kyma: all modules are ready.
    pub const MODULES: &str = "Modules";
    /// Kyma: the catalog (each ModuleTemplate and ModuleReleaseMeta) is in the runtime.
    pub const MODULE_CATALOG: &str = "ModuleCatalog";
    /// Kyma: the watcher is in the runtime (only if it is enabled).
    pub const SKR_WEBHOOK: &str = "SKRWebhook";
    /// Kyma: the image pull Secret is in the runtime (only if one is configured).
    pub const IMAGE_PULL_SECRET_SYNC: &str = "SKRImagePullSecretSync";
    /// Kyma, ours: events of the runtime are proven to arrive (`docs/extensions.md`).
    pub const RUNTIME_EVENTS: &str = "RuntimeEvents";
    /// Kyma, ours: an operator has stopped all writes to runtimes; there only while that is so (`docs/operations.md`).
    pub const PAUSED: &str = "Paused";
    /// Kyma: deprecated; removed from old objects.
    pub const DEPRECATED_READY: &str = "Ready";
    /// Manifest: the module's objects are known; reason [`REASON_RESOURCES_AVAILABLE`].
    pub const RESOURCES: &str = "Resources";
    /// Manifest: the module is installed; reason [`REASON_READY`].
    pub const INSTALLATION: &str = "Installation";
    /// Manifest: the default CR was created; reason [`REASON_MODULE_CR_CREATED`].
    pub const MODULE_CR: &str = "ModuleCR";
    /// Manifest, ours: what the default CR says of itself; its reason is the state (`docs/extensions.md`).
    pub const MODULE_CR_STATE: &str = "ModuleCRState";
    /// Manifest, ours: the module is not Ready, and was so before for the generation that it has observed; reason [`REASON_READY`].
    pub const WAS_READY: &str = "WasReady";
    /// Manifest, ours: the module is not Ready, and each of its Jobs that are removed after their end has completed for the generation
    /// that it has observed; reason [`REASON_READY`].
    pub const JOBS_COMPLETED: &str = "JobsCompleted";
    /// Watcher: its route is configured; reason [`REASON_READY`].
    pub const VIRTUAL_SERVICE: &str = "VirtualService";

    /// Reason of every Kyma condition that is not ours alone, and of some others; that of [`MODULES`] if not all are ready is a state.
    pub const REASON_READY: &str = "Ready";
    /// Reason of [`RESOURCES`].
    pub const REASON_RESOURCES_AVAILABLE: &str = "ResourcesAvailable";
    /// Reason of [`MODULE_CR`].
    pub const REASON_MODULE_CR_CREATED: &str = "ModuleCRCreated";
}
