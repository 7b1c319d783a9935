/* SPDX-License-Identifier: Apache-2.0
 *
 * The distance is that of Damerau and Levenshtein, without edits between exchanged bytes. Three
 * rows of its table are kept. */
#include "base/near.h"

#include <stddef.h>
#include <string.h>

static char near_byte(char c)
{
    return c == '-' ? '_' : c;
}

static int near_min(int a, int b)
{
    return a < b ? a : b;
}

int near_distance(const char *a, const char *b)
{
    int rows[3][NEAR_MAX + 1];
    int a_len = (int)strnlen(a, NEAR_MAX), b_len = (int)strnlen(b, NEAR_MAX);

    for (int k = 0; k <= b_len; k++)
        rows[0][k] = k;
    for (int i = 1; i <= a_len; i++) {
        int *row = rows[i % 3];
        const int *above = rows[(i - 1) % 3];

        row[0] = i;
        for (int k = 1; k <= b_len; k++) {
            int differs = near_byte(a[i - 1]) != near_byte(b[k - 1]);

            row[k] = near_min(above[k - 1] + differs, near_min(above[k], row[k - 1]) + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                row[k] = near_min(row[k], rows[(i - 2) % 3][k - 2] + 1);
        }
    }
    return rows[a_len % 3][b_len];
}

void near_try(struct near *near, const char *name)
{
    size_t len = strlen(near->word);
    int distance;

    if (len > NEAR_MAX || strlen(name) > NEAR_MAX)
        return;
    distance = near_distance(near->word, name);
    if (distance * 3 > (int)len || (near->name != NULL && distance >= near->distance))
        return;
    near->name = name;
    near->distance = distance;
}
