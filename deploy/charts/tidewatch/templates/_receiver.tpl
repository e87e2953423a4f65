{{/* Arguments of the receiver, one a line. */}}
{{- define "tidewatch.args" -}}
- --namespace={{ .Release.Namespace }}
- --admin=0.0.0.0:8080
- --grace={{ int .Values.shutdown.graceSeconds }}
- {{ required "set modules.registry: the OCI registry of the modules" .Values.modules.registry | print "--modules=" | quote }}
{{- range .Values.modules.externalRegistries }}
- {{ print "--external-registry=" . | quote }}
{{- end }}
{{- range .Values.modules.insecureRegistries }}
- {{ print "--insecure-registry=" . | quote }}
{{- end }}
{{- if .Values.modules.credentialsSecret }}
- --registry-credentials=/etc/tidewatch/registry/.dockerconfigjson
{{- end }}
{{- with .Values.modules.cacheMiB }}
- --cache-dir=/var/cache/tidewatch
- --cache-size={{ int . }}
{{- end }}
{{- if .Values.maintenancePolicyConfigMap }}
- --maintenance-policy=/etc/tidewatch/maintenance/policy.json
{{- end }}
{{- if eq .Values.mode "single-cluster" }}
- --single-cluster
{{- else }}
{{- include "tidewatch.agentArgs" . }}
{{- end }}
{{- range $flag, $value := .Values.flags }}
{{- range $one := kindIs "slice" $value | ternary $value (list $value) }}
{{- if and (kindIs "bool" $one) (ne $flag "module-cr-state") }}
{{- if $one }}
- --{{ $flag }}
{{- end }}
{{- else }}
- {{ printf "--%s=%s" $flag (kindIs "string" $one | ternary $one (toJson $one)) | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Arguments of a receiver with agents. */}}
{{- define "tidewatch.agentArgs" }}
- --listen=0.0.0.0:8443
- --leader-service=tidewatch-receiver
- --agent-certificate-lifetime={{ int .Values.certificates.agentHours }}h
{{- if eq .Values.certManagement "cert-manager" }}
- --certificates=cert-manager
{{- else }}
- --ca-certificate-lifetime={{ int .Values.certificates.caHours }}h
- --server-certificate-lifetime={{ int .Values.certificates.serverHours }}h
{{- range include "tidewatch.serverNames" . | fromJsonArray }}
- {{ print "--server-name=" . | quote }}
{{- end }}
{{- end }}
{{- with .Values.agent }}
{{- if .url }}
- {{ print "--agent-url=" .url | quote }}
- --agent-image={{ include "tidewatch.image" (list $ "tidewatch-agent" $.Values.image.agentDigest) }}
{{- with .proxy }}
- {{ print "--agent-proxy=" . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whole folders are mounted: Kubernetes never updates a file that is mounted by subPath. */}}
{{- define "tidewatch.mounts" }}
{{- if .Values.modules.cacheMiB }}
- {name: cache, mountPath: /var/cache/tidewatch}
{{- end }}
{{- if .Values.modules.credentialsSecret }}
- {name: registry, mountPath: /etc/tidewatch/registry, readOnly: true}
{{- end }}
{{- if .Values.maintenancePolicyConfigMap }}
- {name: maintenance, mountPath: /etc/tidewatch/maintenance, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "tidewatch.volumes" }}
{{- with .Values.modules.cacheMiB }}
# Above the limit of the cache, because the kubelet evicts a pod at this size.
- {name: cache, emptyDir: {sizeLimit: {{ int . | mul 2 }}Mi}}
{{- end }}
{{- with .Values.modules.credentialsSecret }}
- {name: registry, secret: {secretName: {{ . }}}}
{{- end }}
{{- with .Values.maintenancePolicyConfigMap }}
- {name: maintenance, configMap: {name: {{ . }}}}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
