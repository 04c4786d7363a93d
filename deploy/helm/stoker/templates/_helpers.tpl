{{- define "stoker.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "stoker.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stoker.labels" -}}
{{ include "stoker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* How a probe asks for a path. */}}
{{- define "stoker.asking" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- with .host }}
  httpHeaders:
    - name: Host
      value: {{ . | quote }}
  {{- end }}
timeoutSeconds: 6
{{- end -}}
