{{/* Names are fixed: the Lease and the Secrets of a receiver have fixed names, so a namespace has one release. */}}

{{- define "tidewatch.selector" -}}
app.kubernetes.io/name: tidewatch
app.kubernetes.io/component: receiver
{{- end }}

{{- define "tidewatch.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{ include "tidewatch.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Argument: list of the root, a program, its digest. */}}
{{- define "tidewatch.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $registry := required "set image.registry: the registry of the images tidewatch-receiver and tidewatch-agent" $image.registry -}}
{{- $tag := $image.tag | default (index . 0).Chart.AppVersion -}}
{{- $version := ternary (print ":" $tag) (print "@" (index . 2)) (empty (index . 2)) -}}
{{ $registry }}/{{ index . 1 }}{{ $version }}
{{- end }}

{{/* Names in the server certificate, as a JSON list. */}}
{{- define "tidewatch.serverNames" -}}
{{- $names := list (printf "tidewatch-receiver.%s.svc" .Release.Namespace) -}}
{{- with .Values.agent.url }}
{{- $names = append $names (regexReplaceAll ":[0-9]+$" (urlParse .).host "" | trimAll "[]") -}}
{{- end }}
{{- concat $names .Values.certificates.serverNames | uniq | toJson }}
{{- end }}
