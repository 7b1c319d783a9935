#!/usr/bin/env python3
"""Goal: no comment names a function that does not exist, no function is left that nothing calls,
every file has its licence line, functions of kernels begin with their file's prefix. Method: universal-ctags lists all definitions; words of comments
and of code are compared with them."""
import collections
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tags import need_ctags, read_tags, report  # noqa: E402

FOLDERS = ['src', 'kernels', 'tools', 'tests']
ENDS = ('.c', '.h', '.cu', '.cuh')
TABLES = ['src/base/settings.def', 'src/base/fault.def', 'src/ipc/metric.def',
          'kernels/sampling.def']  # functions that macros name
LICENCE = 'SPDX-License-Identifier: Apache-2.0'

# Functions of other projects that comments speak of, those of Jinja and Python among them.
FOREIGN = set('''
    accept accept4 alarm close epoll_wait eventfd execve fallocate fdatasync fork fsync ftruncate
    malloc memcmp memcpy memfd_create mlock mmap munmap open poll posix_fallocate pread
    pthread_create pwrite read realloc rename round sendmsg setrlimit sigaction statvfs strtod unlink write
    cycle repr str trim
    exp exp2 exp2f expf fma fmaf log logf sqrt tanh __expf __ldg __syncthreads __shfl_sync
    '''.split())

# Called by tests alone, with the reason.
TESTS_ONLY = {
    'compiled_cache_fini': 'a process ends with its cache; tests look for leaks',
    'device_cuda_stream': 'kernel tests and benches launch on it',
    'err_name': 'names in messages of tests',
    'fault_fired': 'a test asks whether its fault was met',
    'gemm_time': 'bench_gemm', 'gemm_tune': 'bench_gemm', 'gemm_write': 'bench_gemm',
    'host_prove': 'proves the invariants', 'sched_check': 'proves the invariants',
    'store_prove': 'proves the invariants',
    'model_logits': 'goldens compare logits', 'model_page_write': 'goldens write pages',
    'store_db_open': 'the store opens through store_db_probe(); tests open it directly',
    'tables_fini': 'an engine ends with its tables; tests look for leaks',
    'tokenizer_bos': 'goldens', 'tokenizer_eos': 'goldens', 'tokenizer_eos_ids': 'goldens',
    'tokenizer_pad': 'goldens', 'tokenizer_special_ids': 'goldens',
    'tokenizer_open': 'fronts map an image; tests read the folder',
    'tokenizer_close': 'likewise',
    'walk_forced': 'tests compare it with masks',
}

# Files of kernels with words of their own, which every kernel uses.
COMMON = {'activation.cuh', 'common.cuh', 'e4m3.cuh', 'pages.cuh', 'product.cuh', 'sm90.cuh'}


def files():
    listed = [os.path.join(top, name) for folder in FOLDERS for top, _, names in os.walk(folder)
              for name in names]
    return sorted(f for f in listed if f.endswith(ENDS))


def split(text):
    """Comments with their first line, and code whose comments and literals are blank."""
    parts = re.finditer(r'''"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(/\*.*?\*/|//[^\n]*)''',
                        text, re.S)
    comments = [(text.count('\n', 0, m.start()) + 1, m.group(0)) for m in parts if m.group(1)]
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    code = re.sub(r'/\*.*?\*/|//[^\n]*', ' ', code, flags=re.S)
    return comments, code


def is_public(tag):
    """A function of src that other files may call."""
    return (tag['kind'] == 'function' and tag['path'].startswith('src/') and
            tag['path'].endswith('.c') and not tag.get('file'))


def read_prefixes():
    """File name to prefix, of the table of kernels/README.md."""
    with open('kernels/README.md', encoding='utf-8') as f:
        rows = re.findall(r'^\| `(\w+_)` \| (.*) \|$', f.read(), re.M)
    return {name: prefix for prefix, names in rows for name in re.findall(r'`([\w.]+)`', names)}


def without_prefix(tags, texts):
    """Functions of CUDA files that neither begin with the file's prefix nor are exempt."""
    prefixes, found = read_prefixes(), []
    public = '\n'.join(text for f, text in texts.items() if f.endswith(('.h', '.cuh')))
    for tag in tags:
        folder, name = os.path.split(tag['path'])
        if (folder != 'kernels' or not name.endswith(('.cu', '.cuh')) or name in COMMON or
                tag['kind'] != 'function' or tag.get('scopeKind') == 'struct'):
            continue
        word, prefix = tag['name'], prefixes.get(name, 'a prefix of kernels/README.md')
        if (word.startswith((prefix, '__')) or word == prefix[:-1] or word.endswith('_kernel') or
                re.search(r'\b%s\([^;{]*\);' % word, public)):
            continue
        found.append('%s:%d: %s() does not begin with %s' % (tag['path'], tag['line'], word, prefix))
    return found


def main():
    os.chdir(os.environ.get('srcdir', '.'))
    need_ctags()
    tags = read_tags(FOLDERS, '+pfdm')
    known = FOREIGN | {tag['name'] for tag in tags}
    defined = {tag['name']: '%s:%d' % (tag['path'], tag['line']) for tag in tags if is_public(tag)}
    texts = {}
    for name in files():
        with open(name, encoding='utf-8') as f:
            texts[name] = f.read()
    named, words = [], set()
    uses, test_uses, declared = (collections.Counter() for _ in range(3))
    for f, text in texts.items():
        comments, code = split(text)
        for word in re.findall(r'\b[A-Za-z_]\w*\b', code):
            (test_uses if f.startswith('tests/') else uses)[word] += 1
            words.add(word)
        if f.endswith('.h') and f.startswith('src/'):
            declared.update(re.findall(r'\b[A-Za-z_]\w*(?=\()', code))
        for line, comment in comments:
            for name in re.findall(r'(?<![\w.>])([a-z_][a-z0-9_]{2,})\(\)', comment):
                named.append((f, line, name))
    for table in TABLES:
        with open(table, encoding='utf-8') as f:
            uses.update(re.findall(r'\b[A-Za-z_]\w*\b', f.read()))
    unused = []
    for name, where in sorted(defined.items()):
        if uses[name] > 1 + min(1, declared[name]) or name == 'main' or name in TESTS_ONLY:
            continue
        unused.append('%s: %s() is %s' % (where, name, 'called by tests alone'
                                          if test_uses[name] else 'not called'))
    return report({
        'comments name functions that exist':
            ['%s:%d: %s()' % (f, line, name) for f, line, name in named
             if name not in known and name not in words],
        'every function is called': unused,
        'functions of kernels begin with their file\'s prefix': without_prefix(tags, texts),
        'every file has its licence line':
            [f for f, text in texts.items() if LICENCE not in text[:200]]})


if __name__ == '__main__':
    sys.exit(main())
