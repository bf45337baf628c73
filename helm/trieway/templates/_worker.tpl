{{/* Parts of a worker's pod; all take (dict "root" $ "part" model settings "component" "worker" "model" name). */}}
{{- define "trieway.workerArgs" -}}
- worker
{{ include "trieway.serverFlags" . }}
- {{ printf "--model=%s" .part.source | quote }}
- {{ printf "--served-model-name=%s" .part.served | quote }}
- "--device={{ .part.device }}"
- "--dtype={{ .part.dtype }}"
- "--kv-tokens={{ .part.kvTokens | int64 }}"
- "--page-size={{ .part.pageSize | int }}"
- {{ printf "--cache-dir=%s" .part.modelCache.mountPath | quote }}
{{- include "trieway.flags" .part.config }}
{{- range .part.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* "true" if the workers of all models hand their prefixes over before they turn away what is new. */}}
{{- define "trieway.handsOver" -}}
{{- $all := true -}}
{{- range .Values.models -}}
{{- $model := include "trieway.model" (dict "root" $ "model" .) | fromJson -}}
{{- if not $model.handOver.enabled -}}{{- $all = false -}}{{- end -}}
{{- end -}}
{{ $all }}
{{- end -}}

{{/* Before a worker goes and after it came, prefixes pass between it and the others of its model. */}}
{{- define "trieway.workerLifecycle" -}}
{{- $hand := .part.handOver }}
{{- $peers := printf "%s.%s.svc.%s" (include "trieway.workerName" .) .root.Release.Namespace .root.Values.clusterDomain }}
{{- $common := list (printf "--peers=%s" $peers) (printf "--port=%d" (int .part.port)) "--fleet-secret-file=/etc/trieway/keys/fleet-secret" }}
{{- $python := list "python" "-I" "-m" "trieway.worker.neighbours" }}
{{- if or $hand.warm $hand.enabled (gt (int .part.preStopSeconds) 0) }}
lifecycle:
  {{- if $hand.warm }}
  postStart:
    exec:
      command:
        {{- toYaml (concat $python (list "arrive") $common (list (printf "--timeout-s=%d" (int $hand.warmSeconds)))) | nindent 8 }}
  {{- end }}
  {{- if $hand.enabled }}
  preStop:
    exec:
      command:
        {{- toYaml (concat $python (list "leave") $common (list (printf "--timeout-s=%d" (int $hand.seconds)) (printf "--pause-s=%d" (int .part.preStopSeconds)))) | nindent 8 }}
  {{- else if gt (int .part.preStopSeconds) 0 }}
  preStop:
    sleep:
      seconds: {{ int .part.preStopSeconds }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The container's resources with its GPUs. */}}
{{- define "trieway.workerResources" -}}
{{- $resources := deepCopy (.part.resources | default dict) -}}
{{- if gt (int .part.gpu.count) 0 -}}
{{- $gpu := dict .part.gpu.resourceName (int .part.gpu.count) -}}
{{- $resources = mustMergeOverwrite $resources (dict "limits" (mustMergeOverwrite (deepCopy ($resources.limits | default dict)) $gpu)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "trieway.workerEnv" -}}
{{ include "trieway.env" . }}
- name: HF_HUB_OFFLINE
  value: "1"
- name: POD_IP
  valueFrom:
    fieldRef: {fieldPath: status.podIP}
{{- if and (not .part.cuda) (dig "requests" "cpu" "" .part.resources) }}
# torch would take a thread for every core of the node.
- name: OMP_NUM_THREADS
  valueFrom:
    resourceFieldRef: {containerName: {{ .container | default "worker" }}, resource: requests.cpu, divisor: "1"}
{{- end }}
{{- end -}}

{{- define "trieway.workerMounts" -}}
{{ include "trieway.mounts" . }}
- name: models
  mountPath: {{ .part.modelCache.mountPath }}
- name: shm
  mountPath: /dev/shm
{{- end -}}

{{- define "trieway.claimSpec" -}}
accessModes:
  {{- toYaml (.cache.accessModes | default (list .mode)) | nindent 2 }}
{{- with .cache.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ .cache.size }}
{{- end -}}

{{/* The volume `models`; a StatefulSet's own claims come from its templates instead, those of other pods go with them. */}}
{{- define "trieway.workerVolumes" -}}
{{ include "trieway.volumes" . }}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .part.shmSize }}
{{- $cache := .part.modelCache }}
{{- if eq $cache.type "existingClaim" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ $cache.existingClaim }}
{{- else if eq $cache.type "shared" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ include "trieway.workerName" (dict "root" .root "model" .model) }}-models
{{- else if eq $cache.type "emptyDir" }}
- name: models
  emptyDir:
    sizeLimit: {{ $cache.size }}
{{- else if or (eq .root.Values.mode "kuberay") (eq .part.kind "Deployment") }}
- name: models
  ephemeral:
    volumeClaimTemplate:
      spec:
        {{- include "trieway.claimSpec" (dict "cache" $cache "mode" "ReadWriteOnce") | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Fetches a model from the hub before the worker starts; done already on a kept volume: nothing to fetch. */}}
{{- define "trieway.workerInit" -}}
{{- with .part.fetch }}
- name: fetch-model
  image: {{ include "trieway.image" (dict "root" $.root "image" $.part.image "cuda" $.part.cuda) }}
  imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
  command: [hf, download]
  args:
    - {{ .repo | quote }}
    {{- with .revision }}
    - {{ printf "--revision=%s" . | quote }}
    {{- end }}
    {{- range .include }}
    - {{ printf "--include=%s" . | quote }}
    {{- end }}
    - {{ printf "--local-dir=%s" $.part.source | quote }}
  env:
    - name: HOME
      value: /tmp
    {{- with $.root.Values.hub.existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ . }}, key: {{ $.root.Values.hub.key }}}
    {{- end }}
    {{- with $.part.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  securityContext:
    {{- toYaml $.root.Values.securityContext | nindent 4 }}
  resources:
    requests: {cpu: 100m, memory: 256Mi}
    limits: {memory: 2Gi}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    - name: models
      mountPath: {{ $.part.modelCache.mountPath }}
{{- end }}
{{- with .part.initContainers }}
{{ toYaml . }}
{{- end }}
{{- end -}}
