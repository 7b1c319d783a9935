/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of adapters, compiled for the host. */
#include "tests/kernel/play.h"

#include "kernels/adapter.cu"
#include "tests/kernel/played.h"

int played_adapt(const struct k_adapting *a)
{
    play.fault = NULL;
    return k_adapt(a, NULL) == 0 && play.fault == NULL ? 0 : -1;
}
