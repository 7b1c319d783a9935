/* SPDX-License-Identifier: Apache-2.0
 *
 * Retention and namespaces, in the dumps of both tiers. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "tools/dump.h"

/* Retention as "-" (none), "pinned", or priority and end, such as "50@2026-05-01T12:00:00Z". The
 * caller passes a retention of now: expired ones have rank 0. */
void dump_retain(struct retain r, char out[48])
{
    time_t when_s = (time_t)r.until;
    char when[32] = "";
    struct tm tm;

    if (r.until != 0 && gmtime_r(&when_s, &tm) != NULL)
        (void)strftime(when, sizeof when, "@%Y-%m-%dT%H:%M:%SZ", &tm);
    if (r.rank == 0)
        (void)snprintf(out, 48, "-");
    else if (retain_priority(r) == RETAIN_PINNED && r.until == 0)
        (void)snprintf(out, 48, "pinned");
    else
        (void)snprintf(out, 48, "%d%s", retain_priority(r), when);
}

/* Element 0 collects all namespaces without an element of their own. The list is searched linearly,
 * because there are at most DUMP_ROOTS. */
void dump_count(struct dump_roots *roots, uint64_t root, struct retain r, uint64_t uses)
{
    struct dump_root *d;
    int i = 1;

    if (roots->n == 0)
        roots->n = 1;
    while (i < roots->n && roots->list[i].root != root)
        i++;
    if (root == 0 || i == DUMP_ROOTS)
        i = 0;
    else if (i == roots->n)
        roots->list[roots->n++].root = root;
    d = &roots->list[i];
    d->pages++;
    d->retained += r.rank > 0;
    d->uses += uses;
}

/* The namespaces, as a table or as the JSON member "salts". */
void dump_print_roots(const struct dump_roots *roots, bool json)
{
    bool first = true;

    printf(json ? "\"salts\":[" : "\nnamespace          pages  retained      uses\n");
    for (int i = 0; i < roots->n; i++) {
        const struct dump_root *root = &roots->list[i];
        char hex[2 * sizeof root->root + 1] = "others";

        if (root->pages == 0)
            continue;
        if (i > 0)
            hash_hex((const uint8_t *)&root->root, sizeof root->root, hex);
        printf(json ? "%s{\"namespace\":\"%s\",\"pages\":%llu,\"retained\":%llu,\"uses\":%llu}"
                    : "%s%-16s  %6llu  %8llu  %8llu\n",
               json && !first ? "," : "", hex, (unsigned long long)root->pages,
               (unsigned long long)root->retained, (unsigned long long)root->uses);
        first = false;
    }
    if (json)
        printf("],");
}

/* The hit rates by namespace, as a table or as the JSON member "rates". Namespace 0 is that of all
 * others, as in dump_count(). */
void dump_print_rates(const struct store_rate *rates, int n, bool json)
{
    bool first = true;

    printf(json ? "\"rates\":[" : "\nnamespace         prompt tokens        cached    share\n");
    for (int i = 0; i < n; i++) {
        const struct store_rate *rate = &rates[i];
        double share = rate->queries == 0 ? 0.0 : (double)rate->hits / (double)rate->queries;
        char hex[2 * sizeof rate->space + 1] = "others";

        if (rate->queries == 0)
            continue;
        if (rate->space != 0)
            hash_hex((const uint8_t *)&rate->space, sizeof rate->space, hex);
        if (json)
            printf("%s{\"namespace\":\"%s\",\"queries\":%llu,\"hits\":%llu,\"hit_rate\":%.4f}",
                   first ? "" : ",", hex, (unsigned long long)rate->queries,
                   (unsigned long long)rate->hits, share);
        else
            printf("%-16s  %13llu  %12llu  %6.1f%%\n", hex, (unsigned long long)rate->queries,
                   (unsigned long long)rate->hits, 100.0 * share);
        first = false;
    }
    if (json)
        printf("],");
}
