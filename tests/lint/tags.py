"""Definitions of C and CUDA code as universal-ctags sees them, for the lints beside this file."""
import json
import shutil
import subprocess
import sys


def need_ctags():
    """Skip the test where universal-ctags is missing."""
    if shutil.which('ctags'):
        version = subprocess.run(['ctags', '--version'], capture_output=True, text=True)
        if 'Universal' in version.stdout:
            return
    print('1..0 # SKIP universal-ctags is not installed')
    sys.exit(0)


def read_tags(folders, kinds):
    """A dictionary per definition: name, kind, path, line, and end and signature of functions."""
    out = subprocess.run(['ctags', '--output-format=json', '--fields=+neS', '--kinds-c=' + kinds,
                          '--kinds-c++=' + kinds, '--langmap=c++:+.cu.cuh', '--languages=c,c++',
                          '-R', '-f', '-'] + folders, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in out.stdout.strip().split('\n')]


def report(checks):
    """TAP of a dictionary from a check's name to the lines that fail it. Returns the status."""
    for i, (name, found) in enumerate(checks.items(), 1):
        print('%s %d - %s' % ('not ok' if found else 'ok', i, name))
        for line in found[:60]:
            print('# ' + line)
    print('1..%d' % len(checks))
    return int(any(checks.values()))
