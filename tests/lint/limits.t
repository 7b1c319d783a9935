#!/usr/bin/env python3
"""Goal: functions stay as short as docs/CONTRIBUTING.md says (files: tidy.sh). Method: universal-ctags
gives each function's first and last line and its parameters; braces give the nesting."""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tags import need_ctags, read_tags, report  # noqa: E402

MAX_LINES = 70       # of a function
MAX_PARAMETERS = 6   # of a function; kernels, their tests and a device's operations take MAX_KERNEL
MAX_KERNEL = 10
KERNELS = ('kernels/', 'tests/kernel/', 'tests/unit/kernels/', 'src/device/')
MAX_NESTING = 4      # blocks in a function's body
ENDS = ('.c', '.h', '.cu', '.cuh')

# Functions above a limit, with the reason.
EXCEPTIONS = {
    'k_embed_normed': 'the arguments of one operation of a step',
    'test_checks': 'one table of damages, a line each',
    'test_parts': 'a random walk: splitting it would hide the order of its cases',
    'test_permissions': 'one table of owners and modes',
    'test_values': 'one table of values',
    'test_walk': 'a random walk',
    'test_wishes': 'one table of requests',
    'check_ranks': 'a case of a table, one argument per column',
    'round_matrix': 'a matrix and where it goes',
    'world_open_kind': 'a simulation and its sizes',
}


def blank(text):
    """The text without comments and the contents of literals; lines stay."""
    def spaces(m):
        return re.sub(r'[^\n]', ' ', m.group(0))
    return re.sub(r'''/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*\'''', spaces, text,
                  flags=re.S)


def n_parameters(signature):
    inside, depth, n = signature.strip()[1:-1].strip(), 0, 0
    if inside in ('', 'void'):
        return 0
    for c in inside:
        depth += (c in '(<') - (c in ')>')
        n += c == ',' and depth == 0
    return n + 1


def opens_block(text, at):
    """Does the brace at `at` open the block of a statement? Initialisers and bodies do not."""
    before = text[:at].rstrip()
    if before.endswith(('else', 'do')):
        return True
    if not before.endswith(')'):
        return False
    depth, i = 0, len(before) - 1
    while i >= 0:
        depth += (before[i] == ')') - (before[i] == '(')
        if depth == 0:
            break
        i -= 1
    return bool(re.search(r'\b(if|for|while|switch|FOR_EACH\w*)\s*(constexpr\s*)?$', before[:i]))


def nesting(lines):
    """Depth of the statements' blocks in a function."""
    text, kinds, deepest = '\n'.join(lines), [], 0
    for m in re.finditer(r'[{}]', text):
        if m.group(0) == '{':
            kinds.append(opens_block(text, m.start()))
        elif kinds:
            kinds.pop()
        deepest = max(deepest, sum(kinds))
    return deepest


def main():
    os.chdir(os.environ.get('srcdir', '.'))
    need_ctags()
    lines, params, deep, texts = [], [], [], {}
    for tag in read_tags(['src', 'kernels', 'tools', 'tests'], 'f'):
        path, name = tag['path'], tag['name']
        if 'end' not in tag or name in EXCEPTIONS or not path.endswith(ENDS):
            continue
        first, last = tag['line'], tag['end']
        where = '%s:%d: %s()' % (path, first, name)
        if path not in texts:
            with open(path, encoding='utf-8') as f:
                texts[path] = blank(f.read()).split('\n')
        if last - first + 1 > MAX_LINES:
            lines.append('%s has %d lines' % (where, last - first + 1))
        n = n_parameters(tag.get('signature', '()'))
        if n > (MAX_KERNEL if path.startswith(KERNELS) else MAX_PARAMETERS):
            params.append('%s has %d' % (where, n))
        n = nesting(texts[path][first - 1:last])
        if n > MAX_NESTING:
            deep.append('%s has %d' % (where, n))
    return report({
        'no function above %d lines' % MAX_LINES: lines,
        'no function with more than %d parameters, kernels %d' % (MAX_PARAMETERS, MAX_KERNEL):
            params,
        'no block deeper than %d in a function' % MAX_NESTING: deep})


if __name__ == '__main__':
    sys.exit(main())
