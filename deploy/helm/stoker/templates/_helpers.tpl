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

{{/* An HTTP probe of a path. */}}
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


{{- define "stoker.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.user }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "stoker.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end -}}

{{/* Replaces pods when their settings or secrets change, because pods read both at their start. */}}
{{- define "stoker.annotations" -}}
checksum/config: {{ include (print .Template.BasePath "/configmap.yaml") . | sha256sum }}
checksum/secret: {{ include (print .Template.BasePath "/secret.yaml") . | sha256sum }}
{{- with .Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "stoker.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end -}}

{{- define "stoker.envFrom" -}}
- configMapRef:
    name: {{ include "stoker.name" . }}
{{- with .Values.blobs.existingSecret }}
- secretRef:
    name: {{ . }}
{{- end }}
{{- end -}}

{{- define "stoker.databaseUrl" -}}
- name: STOKER_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret | default (include "stoker.name" .) }}
      key: {{ .Values.database.key }}
{{- end -}}

{{- define "stoker.mounts" -}}
- name: data
  mountPath: /data
- name: tmp
  mountPath: /tmp
- name: secret
  mountPath: /run/secrets/stoker
  readOnly: true
{{- end -}}

{{- define "stoker.dataVolume" -}}
- name: data
  {{- if .Values.data.claim }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes:
          - ReadWriteOnce
        {{- with .Values.data.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources:
          requests:
            storage: {{ .Values.data.size }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.data.size }}
  {{- end }}
{{- end -}}

{{- define "stoker.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 1Gi
- name: secret
  secret:
    secretName: {{ .Values.secret.existingSecret | default (include "stoker.name" .) }}
    defaultMode: 0440
    items:
      - key: {{ .Values.secret.key }}
        path: secret
{{- end -}}

{{/* Scheduling constraints of pods. */}}
{{- define "stoker.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "stoker.serverPlacement" -}}
{{- include "stoker.placement" (dict "nodeSelector" .Values.nodeSelector "tolerations" .Values.tolerations "affinity" .Values.affinity) -}}
{{- end -}}

{{/* Nodes have another name than servers, so that the Service sends them no requests. */}}
{{- define "stoker.nodeSelector" -}}
app.kubernetes.io/name: {{ printf "%s-node" .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stoker.headSelector" -}}
app.kubernetes.io/name: {{ printf "%s-head" .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Pods of the Ray cluster, as peers of a network policy. */}}
{{- define "stoker.rayPeers" -}}
- podSelector:
    matchLabels:
      {{- include "stoker.headSelector" . | nindent 6 }}
- podSelector:
    matchLabels:
      {{- include "stoker.nodeSelector" . | nindent 6 }}
{{- end -}}

{{/* Memory for replicas of a node, in MiB: 80% of the limit, which is also a node's own default. */}}
{{- define "stoker.nodeMemory" -}}
{{- $limit := .Values.nodes.resources.limits.memory -}}
{{- $units := dict "Mi" 1 "Gi" 1024 "Ti" 1048576 -}}
{{- $amount := regexFind "^[0-9]+" $limit | int64 -}}
{{- $unit := get $units (regexFind "[A-Za-z]+$" $limit) | int64 -}}
{{- div (mul $amount $unit 4) 5 -}}
{{- end -}}

{{/* The part of a node's container that `nodes` and `ray` share. */}}
{{- define "stoker.nodeContainer" -}}
{{ include "stoker.image" . }}
securityContext:
  {{- include "stoker.security" . | nindent 2 }}
ports:
  - name: node
    containerPort: 7300
envFrom:
  {{- include "stoker.envFrom" . | nindent 2 }}
env:
  {{- include "stoker.databaseUrl" . | nindent 2 }}
  - name: STOKER_NODE_HOST
    valueFrom:
      fieldRef:
        fieldPath: status.podIP
  - name: STOKER_NODE_PORT
    value: "7300"
  - name: STOKER_MEMORY_BUDGET_MIB
    value: {{ include "stoker.nodeMemory" . | quote }}
  {{- if eq .Values.runtime "ray" }}
  {{- include "stoker.rayEnvironment" . | nindent 2 }}
  {{- end }}
# A node listens after the database's migration. A large database may take ten minutes.
startupProbe:
  tcpSocket:
    port: node
  periodSeconds: 2
  failureThreshold: 300
readinessProbe:
  tcpSocket:
    port: node
  periodSeconds: 5
  failureThreshold: 3
livenessProbe:
  tcpSocket:
    port: node
  periodSeconds: 10
  failureThreshold: 6
resources:
  {{- toYaml .Values.nodes.resources | nindent 2 }}
{{- end -}}

{{/* Kubernetes rejects `rollingUpdate` with another type. */}}
{{- define "stoker.strategy" -}}
type: {{ .type }}
{{- if eq .type "RollingUpdate" }}
{{- with .rollingUpdate }}
rollingUpdate:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "stoker.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- . | nindent 8 }}
{{- end -}}

{{/* The token of the Ray cluster, which KubeRay's own containers also need, and the rotation of Ray's logs.
By default each log in /tmp grows to half a gigabyte. */}}
{{- define "stoker.rayEnvironment" -}}
- name: RAY_ROTATION_MAX_BYTES
  value: "16777216"
- name: RAY_ROTATION_BACKUP_COUNT
  value: "1"
- name: RAY_AUTH_MODE
  value: token
- name: RAY_AUTH_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .Values.ray.token.existingSecret | default (include "stoker.name" .) }}
      key: {{ .Values.ray.token.key }}
{{- end -}}

{{/* Ray's object store, which Stoker does not use, has its least size of 80 MiB. */}}
{{- define "stoker.rayStart" -}}
num-cpus: "0"
object-store-memory: "83886080"
dashboard-agent-listen-port: "0"
disable-usage-stats: "true"
{{- end -}}
