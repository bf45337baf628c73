"""Chat templates for the tests, written in the manner of the families they stand for."""

from __future__ import annotations

CHATML = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system
You are a careful assistant<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

# Macros, a date, tools as JSON, namespaces, filters, whitespace control, tool calls and results.
DATED_TOOLS = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "01 Jan 2024" %}{%- endif %}
{%- endif %}
{%- macro header(role) -%}
<|start|>{{ role }}<|end|>

{% endmacro %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set system = '' %}{%- set rest = messages %}
{%- endif %}
{{- header('system') }}
{%- if tools is not none %}{{- "Environment: tools\\n" }}{%- endif %}
{{- "Today is " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system }}{{- "<|eot|>" }}
{%- set ns = namespace(calls=0, names=[]) %}
{%- for message in rest %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- header(message['role']) + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("This model takes one tool call at once") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {%- set ns.calls = ns.calls + 1 %}
        {%- set ns.names = ns.names + [call.name] %}
        {{- header('assistant') }}
        {{- '{"name": "' ~ call.name ~ '", "parameters": ' ~ call.arguments | tojson ~ '}' }}
        {{- "<|eot|>" }}
    {%- else %}
        {{- header('tool') }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if ns.calls %}{{- "<|note|>" ~ ns.calls ~ " calls: " ~ ns.names | join(", ") | upper }}{%- endif %}
{%- if add_generation_prompt %}{{- header('assistant') }}{%- endif %}
"""

ALTERNATING = """{{ bos_token }}{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}\
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% else %}{% generation %}{{ message['content'].split('</think>')[-1].lstrip() + eos_token }}{% endgeneration %}\
{% endif %}{% endfor %}"""

LOOP_CONTROLS = """{%- for message in messages -%}
{%- if message.role == 'skip' %}{% continue %}{% endif -%}
{%- if message.role == 'stop' %}{% break %}{% endif -%}
{{ loop.index }}/{{ loop.length }} {{ message.role | capitalize }}:
{{- message.content | replace('a', 'bb') | indent(2) }}
{% else %}nobody spoke{% endfor -%}
{{ messages | map(attribute='role') | unique | join('+') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{%- for key, value in {'x': 1, 'y': [2, 3]}.items() %} {{ key }}={{ value }}{% endfor %}
{{ messages[-1].content[:5] }} {{ messages[-1].content.startswith('a') }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ 'ab' * 2 }}
{{ '%s-%d' % ('q', 4) }} {{ messages[0].nothing is defined }} {{ messages[0].nothing }} {{ none }}
{{ messages[0]['nothing'] | default('dflt') }} {{ '{}+{}'.format(1, 'z') }} {{ ['c', 'a'] | sort }} {{ (1, 2) }}
{{ 1.5 }} {{ true }} {{ "a" < "b" }} {{ dict(a=1) }} {{ range(3) | list }} {{ [1, 2.5] | sum }} {{ "a" if false }}"""

ALL = {"chatml": CHATML, "dated_tools": DATED_TOOLS, "alternating": ALTERNATING, "loop_controls": LOOP_CONTROLS}
