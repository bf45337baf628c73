{{/* (dict "root" $ "part" settings "component" C "model" M): labels and annotations of a pod. */}}
{{- define "trieway.podMetadata" -}}
labels:
  {{- include "trieway.labels" . | nindent 2 }}
  {{- with .part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/keys: {{ toJson .root.Values.auth | sha256sum | trunc 16 | quote }}
  {{- with mustMerge (dict) (.part.podAnnotations | default dict) .root.Values.commonAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Where a pod may run. The spread over nodes is soft unless constraints are given. */}}
{{- define "trieway.scheduling" -}}
{{- with .part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $selector := dict "matchLabels" (include "trieway.selector" . | fromYaml) }}
{{- $soft := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
topologySpreadConstraints:
  {{- range (.part.topologySpreadConstraints | default (list $soft)) }}
  - {{- toYaml (mustMerge (deepCopy .) (dict "labelSelector" $selector)) | nindent 4 }}
  {{- end }}
{{- with .part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .part.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What every pod has. */}}
{{- define "trieway.podCommon" -}}
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "trieway.volumes" -}}
- name: keys
  secret:
    secretName: {{ include "trieway.secretName" .root }}
    defaultMode: 288 # 0440: the group is fsGroup
    items:
      {{- include "trieway.keyItems" .root | nindent 6 }}
- name: tmp
  emptyDir: {}
{{- with .part.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Only what servers need: the client's own key stays out. */}}
{{- define "trieway.keyItems" -}}
{{- $keys := .Values.auth.secretKeys }}
{{- if .Values.auth.requireApiKeys }}
- key: {{ $keys.apiKeys }}
  path: api-keys
{{- end }}
- key: {{ $keys.adminKey }}
  path: admin-key
- key: {{ $keys.fleetSecret }}
  path: fleet-secret
{{- end -}}

{{- define "trieway.mounts" -}}
- name: keys
  mountPath: /etc/trieway/keys
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- with .part.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "trieway.env" -}}
- name: HOME
  value: /tmp
{{- with .root.Values.tracing }}
{{- if .otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .otlpEndpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ include "trieway.scalar" .sampleRatio | quote }}
- name: OTEL_SERVICE_NAME
  value: trieway-{{ $.component }}
{{- if .headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef: {name: {{ .headersSecret }}, key: {{ .headersKey }}}
{{- end }}
{{- end }}
{{- end }}
{{- with .part.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A probe of our HTTP port: (dict "path" P "probe" numbers). */}}
{{- define "trieway.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: HTTP
{{ toYaml .probe }}
{{- end -}}

{{/* Flags of both servers. */}}
{{- define "trieway.serverFlags" -}}
- "--host={{ .root.Values.listenHost }}"
- "--port={{ .part.port | int }}"
- "--drain-timeout-s={{ .part.drainSeconds | int }}"
- "--log-level={{ .root.Values.logLevel }}"
- "--log-format={{ .root.Values.logFormat }}"
{{- if .root.Values.auth.requireApiKeys }}
- "--api-keys-file=/etc/trieway/keys/api-keys"
{{- else }}
- "--allow-open"
{{- end }}
- "--admin-key-file=/etc/trieway/keys/admin-key"
- "--fleet-secret-file=/etc/trieway/keys/fleet-secret"
{{- end -}}

{{/* Time for endpoints to forget the pod, then for running answers, then for the process to end. */}}
{{- define "trieway.grace" -}}
{{- $pause := int .preStopSeconds -}}
{{- if dig "handOver" "enabled" false . -}}{{- $pause = max $pause (add (int .handOver.seconds) 5) -}}{{- end -}}
{{ add $pause (int .drainSeconds) 15 }}
{{- end -}}

{{- define "trieway.lifecycle" -}}
{{- if gt (int .preStopSeconds) 0 }}
lifecycle:
  preStop:
    sleep:
      seconds: {{ int .preStopSeconds }}
{{- end }}
{{- end -}}
