{{/* What the schema cannot say: fails with one line that names the value and what to do. */}}
{{- define "trieway.checks" -}}
{{- $names := list -}}
{{- range .Values.models -}}
{{- if has .name $names -}}
{{- fail (printf "models: the name %s is there twice; give each model its own" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- if has .name (list "router" "workers" "deletion-costs") -}}
{{- fail (printf "models: %s is the name of the chart's own objects; give the model another" .name) -}}
{{- end -}}
{{- $whole := include "trieway.workerName" (dict "root" $ "model" .name) -}}
{{- if gt (len $whole) 52 -}}
{{- fail (printf "models: %s is %d characters long, and with what Kubernetes adds it may have 52; shorten the model's name or set fullnameOverride" $whole (len $whole)) -}}
{{- end -}}
{{- $model := include "trieway.model" (dict "root" $ "model" .) | fromJson -}}
{{- if gt (int $model.gpu.count) 1 -}}
{{- fail (printf "models %s: gpu.count is %d, but a worker computes on one GPU: splitting a model over GPUs (tensorParallel) is not built yet; set gpu.count to 1 and replicas to the number of GPUs" .name (int $model.gpu.count)) -}}
{{- end -}}
{{- if and (gt (int $model.gpu.count) 0) (eq $model.device "cpu") -}}
{{- fail (printf "models %s: gpu.count is %d and device is cpu; take one of them back" .name (int $model.gpu.count)) -}}
{{- end -}}
{{- if and (eq $model.kind "Deployment") (eq $.Values.mode "kuberay") -}}
{{- fail (printf "models %s: kind Deployment is of mode deployment; in mode kuberay Ray Serve runs the workers and chooses which one leaves" .name) -}}
{{- end -}}
{{- if $model.autoscaling.enabled -}}
{{- if eq $.Values.mode "kuberay" -}}
{{- fail (printf "models %s: autoscaling is KEDA's and of mode deployment; in mode kuberay Ray Serve scales between autoscaling.minReplicas and maxReplicas with kuberay.inTreeAutoscaling" .name) -}}
{{- end -}}
{{- if and (not $model.autoscaling.prometheusAddress) (not $model.autoscaling.triggers) -}}
{{- fail (printf "models %s: autoscaling needs autoscaling.prometheusAddress, the URL of the Prometheus that scrapes the workers" .name) -}}
{{- end -}}
{{- end -}}
{{- if gt (int $model.autoscaling.minReplicas) (int $model.autoscaling.maxReplicas) -}}
{{- fail (printf "models %s: autoscaling.minReplicas is above autoscaling.maxReplicas" .name) -}}
{{- end -}}
{{- if and (eq $model.modelCache.type "existingClaim") (not $model.modelCache.existingClaim) -}}
{{- fail (printf "models %s: modelCache.type existingClaim needs modelCache.existingClaim" .name) -}}
{{- end -}}
{{- end -}}
{{- $both := list "host" "port" "drain_timeout_s" "log_level" "log_format" "api_keys_file" "admin_key_file" "fleet_secret_file" "allow_open" -}}
{{- $taken := dict "router" (concat $both (list "workers" "worker" "discover" "policy" "kubernetes_service" "kubernetes_namespace" "kubernetes_port_name" "kubernetes_leaving")) -}}
{{- $taken = set $taken "worker" (concat $both (list "model" "served_model_name" "device" "dtype" "kv_tokens" "page_size" "cache_dir")) -}}
{{- include "trieway.configCheck" (dict "where" "router.config" "config" .Values.router.config "taken" $taken.router) -}}
{{- include "trieway.configCheck" (dict "where" "worker.config" "config" .Values.worker.config "taken" $taken.worker) -}}
{{- range .Values.models -}}
{{- include "trieway.configCheck" (dict "where" (printf "models %s: config" .name) "config" .config "taken" $taken.worker) -}}
{{- end -}}
{{- with .Values.auth -}}
{{- if and .existingSecret (or .apiKeys .adminKey .fleetSecret) -}}
{{- fail "auth: give either auth.existingSecret or the keys themselves, not both" -}}
{{- end -}}
{{- if and (not .requireApiKeys) .apiKeys -}}
{{- fail "auth: apiKeys are given but auth.requireApiKeys is false; set it to true, or give none" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.router.autoscaling.enabled (gt (int .Values.router.autoscaling.minReplicas) (int .Values.router.autoscaling.maxReplicas)) -}}
{{- fail "router.autoscaling: minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and .Values.router.autoscaling.enabled (eq .Values.mode "kuberay") -}}
{{- fail "router.autoscaling is of mode deployment; in mode kuberay there is one router for each pod of the router group: set router.replicas" -}}
{{- end -}}
{{- if and .Values.load.enabled (eq .Values.load.command "replay") (not .Values.load.trace) -}}
{{- fail "load: command replay needs load.trace, the path of a trace in the pod (load.extraVolumes brings it there)" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute: parentRefs must name a Gateway" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress: hosts must name at least one host" -}}
{{- end -}}
{{- end -}}

{{- define "trieway.configCheck" -}}
{{- range $key, $_ := .config -}}
{{- if has $key $.taken -}}
{{- fail (printf "%s: %s is set by the chart from a value of its own (see README.md); take it out of config" $.where $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
