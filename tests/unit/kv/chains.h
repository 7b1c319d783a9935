/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages in chains of N_DEEP, each with a payload of its own, for tests of the lower tiers. Who
 * includes it has defined BLOCK (tokens of a page), PAGE_BYTES and N_DEEP. */
#ifndef QUIRE_TESTS_UNIT_KV_CHAINS_H
#define QUIRE_TESTS_UNIT_KV_CHAINS_H

#include "ipc/prefix.h"

#define CHAINS_SECTOR 512 /* bytes that a disk writes whole or not at all: alike in a payload */

struct page_of {
    struct hash name;
    struct hash parent;
    int32_t tokens[BLOCK];
    unsigned char payload[PAGE_BYTES];
};

static void make_pages(struct page_of *pages, int n)
{
    for (int k = 0; k < n; k++) {
        struct page_of *p = &pages[k];
        struct hash root = {{(uint8_t)(k / N_DEEP + 1)}};

        p->parent = k % N_DEEP == 0 ? root : pages[k - 1].name;
        for (int t = 0; t < BLOCK; t++)
            p->tokens[t] = k * BLOCK + t;
        p->name = prefix_name(&p->parent, p->tokens, BLOCK);
        for (int i = 0; i < PAGE_BYTES; i++)
            p->payload[i] = (unsigned char)(i / CHAINS_SECTOR * 7 + k * 3 + 1);
    }
}

#endif
