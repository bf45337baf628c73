{{- define "trieway.rayPodMetadata" -}}
{{- $labels := mustMerge (dict "trieway.dev/ray" "yes") (.part.podLabels | default dict) -}}
{{ include "trieway.podMetadata" (mustMerge (dict "part" (mustMerge (dict "podLabels" $labels) .part)) .) }}
{{- end -}}

{{/* The node's own health, answered by its agent. */}}
{{- define "trieway.rayletProbe" -}}
httpGet: {path: /api/local_raylet_healthz, port: 52365}
periodSeconds: 5
failureThreshold: 24
timeoutSeconds: 5
{{- end -}}

{{/* A resource of which the node has one, quoted for the shell that KubeRay starts Ray with. */}}
{{- define "trieway.rayResources" -}}
{{ printf "'{%q: 1}'" . | quote }}
{{- end -}}

{{/* What Ray Serve runs. */}}
{{- define "trieway.serveConfig" -}}
{{- $keys := "/etc/trieway/keys" -}}
{{- $server := dict "host" .Values.listenHost "log_level" .Values.logLevel "log_format" .Values.logFormat "admin_key_file" (printf "%s/admin-key" $keys) "fleet_secret_file" (printf "%s/fleet-secret" $keys) -}}
{{- if .Values.auth.requireApiKeys -}}
{{- $_ := set $server "api_keys_file" (printf "%s/api-keys" $keys) -}}
{{- else -}}
{{- $_ := set $server "allow_open" true -}}
{{- end -}}
{{- $router := mustMerge (dict "port" (int .Values.router.port) "policy" .Values.router.policy "drain_timeout_s" (int .Values.router.drainSeconds)) $server .Values.router.config -}}
{{- $models := list -}}
{{- range .Values.models -}}
{{- $model := include "trieway.model" (dict "root" $ "model" .) | fromJson -}}
{{- $settings := dict "port" (int $model.port) "model" $model.source "served_model_name" $model.served "device" $model.device "dtype" $model.dtype "kv_tokens" (int64 $model.kvTokens) "page_size" (int $model.pageSize) "cache_dir" $model.modelCache.mountPath "drain_timeout_s" (int $model.drainSeconds) -}}
{{- $scale := dict "replicas" (int $model.replicas) -}}
{{- if $.Values.kuberay.inTreeAutoscaling -}}
{{- $scale = dict "min_replicas" (int $model.autoscaling.minReplicas) "max_replicas" (int $model.autoscaling.maxReplicas) -}}
{{- end -}}
{{- $models = append $models (mustMerge (dict "name" .name "num_gpus" (int $model.gpu.count) "resources" (dict (printf "trieway_model_%s" .name) 1) "worker" (mustMerge $settings $server $model.config)) $scale) -}}
{{- end -}}
{{- /* A pod has room for one replica: an upgrade starts the new one when the old one has left. */ -}}
{{- $args := dict "fleet" (include "trieway.fullname" .) "router" $router "router_resources" (dict "trieway_router" 1) "router_replicas" (int .Values.router.replicas) "models" $models "surge" false -}}
{{- toYaml (dict "proxy_location" "Disabled" "applications" (list (dict "name" "trieway" "route_prefix" "/" "import_path" "trieway.router.ray_app:build" "args" $args))) -}}
{{- end -}}
