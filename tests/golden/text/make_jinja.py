#!/usr/bin/env python3
# Makes tests/golden/text/jinja.json: templates, variables, and what jinja2 with Hugging Face's
# settings makes of them. With a folder of templates as argument it makes cases of those instead,
# on standard output, for QUIRE_JINJA_CASES of test_jinja.
#
#   pip install jinja2==3.1.6 && python3 tests/golden/text/make_jinja.py
import datetime
import glob
import json
import os
import sys

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2 import nodes

assert jinja2.__version__ == "3.1.6"
NOW = 1700000000


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.If(nodes.Const(True), body, [], [], lineno=line)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception
ENV.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather <now> & \"then\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Stra\u00dfe"},
                                     "days": {"type": "integer", "default": 1.0, "enum": [1, 2.5, None, True]}}, "required": ["city"]}}}
MESSAGES = {
    "plain": [{"role": "user", "content": " Hi, it's me \U0001f600\n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"},
               {"role": "assistant", "content": "Two."}, {"role": "user", "content": "Three?"}],
    "call": [{"role": "user", "content": "Weather?"},
             {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdef123", "type": "function", "function": {
                 "name": "get_weather", "arguments": {"city": "\u041c\u043e\u0441\u043a\u0432\u0430", "days": 2}}}]},
             {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "{\"t\": 3}"},
             {"role": "assistant", "content": "3 degrees."}, {"role": "user", "content": "Thanks"}],
    "think": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA"},
              {"role": "user", "content": "Q2"}],
    "bad": [{"role": "assistant", "content": "first"}, {"role": "assistant", "content": "again"}],
}
CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>' + message.role }}
        {%- for call in message.tool_calls %}
            {%- set f = call.function %}
            {{- '\\n<tool_call>\\n{"name": "' ~ f.name ~ '", "arguments": ' }}
            {{- f.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
SNIPPETS = [
    "a\n", "a\n\n", "\r\na\rb", "  {% if true %}\n  x\n  {% endif %}\n y", "a {%- if true -%} b {%- endif -%} c",
    "  {# c #}\nx{#- y -#}  z", "{%+ if true %}x{% endif +%}\ny", "{{ 1 }}  {% if 1 %}x{% endif %}", "{% raw %}{{ x }}{% endraw %}!",
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.0 // 2 }} {{ -7.5 % 2 }}",
    "{{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 10 / 2 }} {{ true }} {{ none }} {{ None is none }} {{ True + 1 }}",
    "{{ [1, 'a', \"it's\", '\"', 1.5, none, true, {'k': (1,), 'l': ()}] }}", "{{ 'a\\n\\t\\\\b\\u00e9\\x41' }} {{ ['a\\n\u00e9\u200b\U000e0001\\x7f'] }}",
    "{{ 'x' ~ 1 ~ none ~ [1] ~ 1.0 }}", "{{ 'a' 'b' }}", "{{ (1, 2) + (3,) }} {{ [1] + [2] }} {{ 'ab' * 3 }} {{ 3 * 'ab' }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 'a' in 'abc' }} {{ 4 not in [1, 2] }} {{ 'k' in {'k': 1} }} {{ not 0 }}",
    "{{ 0 or 'x' }} {{ '' and 1 }} {{ 1 and 2 }} {{ x or 'none' }} {{ 'y' if x else 'n' }} {{ 'y' if x }}|",
    "{{ 'hello'[1] }} {{ 'hello'[-1] }} {{ 'h\u00e9llo'[1:3] }} {{ 'hello'[::-1] }} {{ [1,2,3,4][1:] }} {{ [1,2,3,4][-2:] }} {{ [1,2,3,4][::2] }} {{ [1,2,3][:-1] }} {{ [1,2,3][5:] }}",
    "{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}",
    "{% set ns = namespace(a=1, b=[]) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% for i in range(5) if i % 2 == 0 %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}|{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}none{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for i in 'abc' %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }}{{ loop.cycle('x', 'y') }}{{ loop.changed(i) }}{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(1, 2, 3, 4, d=5) }}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ g(n - 1) }}{% endif %}{% endmacro %}{% macro g(n) %}<{{ f(n) }}>{% endmacro %}{{ f(3) }}",
    "{% macro w() %}[{{ caller() }}]{% endmacro %}{% call w() %}in{% endcall %} {% macro w2() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) w2() %}{{ a + b }}{% endcall %}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}{% set y | upper %}abc{% endset %}{{ y }}", "{% filter upper | trim %} abc {% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% generation %}gen{% endgeneration %}",
    "{{ ' a b '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\u00a0\\x1fa\u3000'.strip() }}|",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c d'.split(none, 2) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ 'abc'.split('x')[-1] }}",
    "{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'aXa'.replace('a', 'bb') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }}",
    "{{ 'stra\u00dfe \u01c6'.upper() }} {{ 'ABC'.lower() }} {{ \"it's a-b c\".title() }} {{ 'hELLO wORLD'.capitalize() }} {{ \"it's a-b (c\" | title }} {{ 'aB' | capitalize }}",
    "{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'x'.find('y') }} {{ 'aaa'.count('a') }} {{ '-'.join(['a', 'b']) }} {{ '12'.isdigit() }} {{ ''.isspace() }}",
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 5) }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }} {{ {'a': {'items': 3}}['a']['items'] }}",
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ [{'n': 2}, {'n': 1}] | sort(attribute='n') }} {{ [1, 2, 3] | sort(reverse=true) }} {{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ [1, 2, 3] | length }} {{ 'h\u00e9' | length }} {{ {} | length }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 2] | join(', ') }} {{ 'abc' | list }} {{ [1, 1, 2] | unique | list }}",
    "{{ [{'a': 1}, {'a': 2}, {}] | selectattr('a', 'defined') | map(attribute='a') | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('equalto', 2) | list }} {{ ['a', 'b'] | map('upper') | join }}",
    "{{ [{'r': 'x'}, {'r': 'y'}] | selectattr('r', 'equalto', 'y') | list }} {{ [{'r': 1}, {'r': 0}] | rejectattr('r') | list }} {{ [1, 2] | sum }} {{ [1, 5, 2] | max }} {{ [3, 1] | min }}",
    "{{ {'a': [1, 2.0, 'x\u00e9<>&', none, true], 'b': {}} | tojson }} {{ {'b': 1, 'a': [1, {'c': 2}], 'e': [], 'f': {}} | tojson(indent=2) }} {{ 'é' | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ 'a\\nb\\n\\nc' | indent(2) }} {{ 'a\\nb' | indent(2, true) }} {{ 'a\\nb' | indent(first=true) }}",
    "{{ 'a\\rb\\r\\nc\\x0bd\u2028e\u0085f\\x1cg' | indent(2) }}|{{ 'a\\n' | indent(2, blank=true) }}|{{ '\\n\\na\\n' | indent(1, true, true) }}|{{ '' | indent(2, true) }}", "{{ 5 | indent }}",
    "{{ 'a\\rb\u2029c\\n\\nd\\n'.splitlines() }} {{ 'a\\r\\nb'.splitlines(true) }}",
    "{{ 'a<'|safe + '<&' }} {{ '<' + 'b>'|safe }} {{ ('<'|safe + '>')|upper + '<' }} {{ '<'|safe ~ '>' + '<' }} {{ '<'|e + '<' }} {{ '<'|e|e }} {{ '<'|e|forceescape }} {{ '<'|e|replace('&', '<') }}",
    "{{ '<%s %d>'|safe % ('<', 3) }} {{ ('{}<{n}'|safe).format('<', n='>') }} {{ '<'|safe * 2 + '&' }} {{ ', '|join }} {{ (','|safe).join(['<', 1]) }} {{ ['<', 'a'|safe]|join('<'|safe) + '<' }}",
    "{{ ['<'|safe, 'a'] }} {{ ('a,b'|safe).split(',') }} {{ ('<a>'|safe)[1:] + '<' }} {{ ('<a>'|safe)[0] + '<' }} {{ ('<a>'|safe)|first + '<' }} {{ ('<a>'|safe).replace('a', '<') }} {{ (' <'|safe)|trim + '<' }} {{ (' <'|safe).strip() + '<' }}",
    "{{ '<'|safe is escaped }} {{ '<' is escaped }} {{ {'a': '<'|safe}|tojson + '<' }} {{ '<'|safe + {'a': '<'}|tojson }} {{ ('ab c'|safe)|title + '<' }} {{ ('ab'|safe)|capitalize + '<' }} {{ ('<b'|safe)|reverse + '<' }} {{ ('<\\na'|safe)|indent + '<' }} {{ '<'|safe == '<' }}", "{{ 'x'|safe + 1 }}",
    "{% set x = '<'|safe %}{% set y %}{{ x }}{% endset %}{{ y + '<' }} {{ x|string + '<' }} {{ x|list }} {{ x|length }} {{ x in '<' }} {{ x|default('>') + '<' }} {{ 5|safe + '<' }} {{ [1]|e }}",
    "{{ '12' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ '1.5' | float }} {{ 3 | float }} {{ -3 | abs }} {{ 2.567 | round(2) }} {{ 5 | string + 'x' }}",
    "{{ x | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | d('z') }} {{ ' x ' | trim }}| {{ 'xax' | trim('x') }} {{ 'a' | replace('a', 'b') }} {{ 'abc' | reverse }} {{ [1, 2] | reverse | list }}",
    "{{ x is defined }} {{ x is undefined }} {{ 1 is number }} {{ 1 is integer }} {{ 1.0 is float }} {{ 's' is string }} {{ {} is mapping }} {{ [] is iterable }} {{ 's' is sequence }} {{ true is boolean }} {{ true is true }} {{ 3 is odd }} {{ 4 is even }} {{ 6 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 2 is gt(1) }} {{ 1 is in [1, 2] }} {{ 1 is not none }} {{ 'a' is not string and 1 }}",
    "{{ '%s is %d' % ('a', 3) }} {{ '{} {1} {n}'.format('a', 'b', n=3) if false else '{} {n}'.format('a', n=3) }}",
    "{{ strftime_now('%d %b %Y') }} {{ dict(a=1, b='x') }} {% set j = joiner('; ') %}{{ j() }}a{{ j() }}b", "{{ raise_exception('No: ' ~ 3) }}", "{{ x + 'a' }}", "{{ x.y.z }}",
    "{{ 1 + 'a' }}", "{{ [].append(1) }}", "{{ 1 / 0 }}", "{{ 'a' < 1 }}", "{{ none.x }}|{{ 5 | tojson }}", "{{ x | nosuch }}", "{% if x is nosuch %}{% endif %}",
    "{% for i in 5 %}{% endfor %}", "{% if %}", "{% endfor %}", "{{ 'a }}", "{{ (1 }}", "{% for %}", "{% nosuch %}", "{{ 1 if }}", "{% if true %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set a = 1, 2 %}{{ a }}", "{{ big }} {{ big | tojson }} {{ one }} {{ one | tojson }} {{ small }}", "{{ '<b>' | escape }} {{ 'a' | safe }}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% if a is defined and a %}{% elif true %}e{% else %}f{% endif %}", "{{ {'a':{'b':1}}.a.b }}{{ [[1]][0][0] }}{{ {1: 'x'}[1] }}",
    "{% for x in [1,2,3] %}{% for y in [1,2] %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
]


def case(name, source, context):
    out = {"name": name, "template": source, "context": context, "now": NOW}
    try:
        out["expected"] = ENV.from_string(source).render(**context)
    except jinja2.exceptions.TemplateSyntaxError as e:
        out["syntax"] = str(e)
    except Exception as e:  # whatever Python raises is an error of the template
        out["raised"] = str(e)
        out["exact"] = type(e) is jinja2.exceptions.TemplateError
    return out


def contexts():
    for name, messages in MESSAGES.items():
        for tools in (None, [TOOL]):
            for generate in (False, True):
                yield "%s%s%s" % (name, "+tools" if tools else "", "+gen" if generate else ""), {
                    "messages": messages, "tools": tools, "add_generation_prompt": generate, "bos_token": "<s>",
                    "eos_token": "</s>", "documents": None}


def main():
    if len(sys.argv) > 1:
        sources = {}
        for path in sorted(glob.glob(sys.argv[1] + "/**/*.jinja", recursive=True)):
            sources[os.path.relpath(path, sys.argv[1])] = open(path, newline="").read()
        for path in sorted(glob.glob(sys.argv[1] + "/**/tokenizer_config.json", recursive=True)):
            source = json.load(open(path)).get("chat_template")
            if isinstance(source, str):
                sources[os.path.relpath(path, sys.argv[1])] = source
        json.dump([case(n + " " + k, s, c) for n, s in sources.items() for k, c in contexts()], sys.stdout, ensure_ascii=False)
        return
    cases = [case(s[:40], s, {"big": 2 ** 70, "one": 1.0, "small": 2 ** 53 + 1}) for s in SNIPPETS]
    cases += [case("chatml " + k, CHATML, c) for k, c in contexts()]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")


main()
