#!/usr/bin/env bash
# Goal: loops of wgmma in sm90_product.cu compute their operands once a warp. Where ptxas takes the
# threads for divergent (docs/kernels/guide.md, Traps) it does so lane by lane, which
# changes no result and costs some percent. Method: no WARPSYNC between the first wgmma of a kernel
# and its last. Not looked at: residuals in tiles of several blocks (n_out above 64 rows a
# multiprocessor), which diverge.
set -u
object=${builddir:-.}/kernels/sm90_product.o
tool=$(command -v cuobjdump || echo /usr/local/cuda/bin/cuobjdump)
[ -f "$object" ] && [ -x "$tool" ] || { echo "1..0 # SKIP no CUDA build, or no cuobjdump"; exit 0; }
"$tool" -sass "$object" 2>/dev/null | awk '
    function end() {
        if (name == "" || n == 0) return
        kernels++
        # wide_kernel<N, blocks, kind, form>; kind 3 is the residual
        if (found > 0 && name !~ /Li[24]ELi3EL9wide_form/) { bad++; print "# " name ": " found }
    }
    /Function :/ { end(); name = $NF; n = found = waiting = 0 }
    /WARPSYNC/ { if (n > 0) waiting++ }
    /HGMMA/ { n++; found += waiting; waiting = 0 }
    END {
        end()
        print "1..1"
        fine = kernels >= 90 && bad == 0
        print (fine ? "ok" : "not ok") " 1 - " bad + 0 " of " kernels " kernels diverge"
        exit !fine
    }'
