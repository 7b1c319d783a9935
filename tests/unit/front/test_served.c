/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of a model by its name, and the lists of models that keys may use. */
#include "front/served.h"

#include <string.h>

#include "tests/tap.h"

static struct served *find(struct served *at, const char *name)
{
    return served_find(at, 2, name, strlen(name));
}

int main(void)
{
    static struct served at[2];

    must_ok(names_read(&at[0].names, "large, big", ""));
    must_ok(names_read(&at[1].names, "small", ""));
    ok(find(at, "large") == &at[0] && find(at, "big") == &at[0], "a name and an alias");
    ok(find(at, "small") == &at[1], "the other model");
    ok(find(at, "smal") == NULL && find(at, "smalle") == NULL && find(at, "") == NULL,
       "no other name");
    ok(served_find(at, 2, "small/x", 5) == &at[1], "a name need not end with NUL");
    at[0].names.any = true;
    ok(find(at, "small") == &at[1] && find(at, "other") == &at[0],
       "one with any name has those that no other has");

    ok(served_is_allowed(&at[0], "") && served_is_allowed(&at[0], " ,"), "no list: all");
    ok(served_is_allowed(&at[0], "*") && served_is_allowed(&at[1], "x,*"), "all, in words");
    ok(served_is_allowed(&at[0], "small,large") && served_is_allowed(&at[0], "small big"),
       "by one of its names, between commas or blanks");
    ok(!served_is_allowed(&at[1], "large,big") && !served_is_allowed(&at[1], "smal,smaller"),
       "not by a part of it");
    ok(!served_is_allowed(&at[0], "other"), "any name is no permission");
    return tap_done();
}
