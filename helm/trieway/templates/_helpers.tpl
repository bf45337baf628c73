{{/* Names and labels. */}}
{{- define "trieway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "trieway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "component" C): what selects the pods of one component; never changes in a release's life. */}}
{{- define "trieway.selector" -}}
app.kubernetes.io/name: {{ include "trieway.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- with .model }}
trieway.dev/model: {{ . }}
{{- end }}
{{- end -}}

{{- define "trieway.labels" -}}
{{ include "trieway.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: trieway
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "name" N "component" C "model" M "labels" {} "annotations" {}): an object's metadata. */}}
{{- define "trieway.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "trieway.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with mustMerge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "trieway.routerName" -}}{{ include "trieway.fullname" . }}-router{{- end -}}
{{- define "trieway.workerService" -}}{{ include "trieway.fullname" . }}-workers{{- end -}}
{{- define "trieway.workerName" -}}{{ include "trieway.fullname" .root }}-{{ .model }}{{- end -}}
{{- define "trieway.secretName" -}}
{{- .Values.auth.existingSecret | default (printf "%s-keys" (include "trieway.fullname" .)) -}}
{{- end -}}
{{- define "trieway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "trieway.routerName" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "trieway.keeperName" -}}{{ include "trieway.fullname" . }}-deletion-costs{{- end -}}
{{- define "trieway.keeperAccount" -}}
{{- $account := .Values.deletionCost.serviceAccount -}}
{{- $account.name | default (ternary (include "trieway.keeperName" .) "default" $account.create) -}}
{{- end -}}

{{/* "yes" where some model's workers are a Deployment whose deletion costs are kept. */}}
{{- define "trieway.keepsCosts" -}}
{{- if and (eq .Values.mode "deployment") .Values.deletionCost.enabled -}}
{{- $found := false -}}
{{- range .Values.models -}}
{{- if eq (include "trieway.model" (dict "root" $ "model" .) | fromJson).kind "Deployment" -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if $found -}}yes{{- end -}}
{{- end -}}
{{- end -}}

{{/* Where clients inside the cluster find the fleet. */}}
{{- define "trieway.url" -}}
{{- printf "http://%s.%s.svc.%s:%v" (include "trieway.routerName" .) .Release.Namespace .Values.clusterDomain (.Values.router.service.port | int) -}}
{{- end -}}

{{/* (dict "root" $ "image" overrides "cuda" bool) */}}
{{- define "trieway.image" -}}
{{- $image := mergeOverwrite (deepCopy .root.Values.image) (.image | default dict) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (printf "%s%s" .root.Chart.AppVersion (ternary $image.cudaSuffix $image.cpuSuffix (.cuda | default false)))) -}}
{{- end -}}
{{- end -}}

{{/* Numbers of a values file are floats: print whole ones without an exponent. */}}
{{- define "trieway.scalar" -}}
{{- if kindIs "float64" . -}}
{{- if eq (floor .) . -}}{{ printf "%.0f" . }}{{- else -}}{{ printf "%v" . }}{{- end -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{/* Settings by their names in `trieway config show`, as a list of flags (YAML). */}}
{{- define "trieway.flags" -}}
{{- range $key, $value := . }}
{{- $flag := $key | replace "_" "-" }}
{{- if kindIs "bool" $value }}
- {{ printf "--%s%s" (ternary "" "no-" $value) $flag | quote }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%s" $flag (include "trieway.scalar" $value) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* (dict "root" $ "model" entry): a model's settings: its own over those of `worker`. A JSON object. */}}
{{- define "trieway.model" -}}
{{- $merged := mergeOverwrite (deepCopy .root.Values.worker) (deepCopy .model) -}}
{{- $source := $merged.model | default $merged.name -}}
{{- if $merged.fetch -}}
{{- $source = printf "%s/hub/%s" $merged.modelCache.mountPath $merged.name -}}
{{- end -}}
{{- $served := $merged.servedModelName | default $merged.model | default $merged.name -}}
{{- $cuda := or (gt (int $merged.gpu.count) 0) (eq $merged.device "cuda") -}}
{{- $device := $merged.device -}}
{{- if eq $device "auto" -}}{{- $device = ternary "cuda" "cpu" $cuda -}}{{- end -}}
{{- toJson (mergeOverwrite $merged (dict "source" $source "served" $served "cuda" $cuda "device" $device)) -}}
{{- end -}}
