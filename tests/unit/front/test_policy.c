/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: tenants of different names stay different, however long the names are, and so do their
 * namespaces. Method: names at the border of what a request has room for. */
#include "front/request/policy.h"
#include "tests/tap.h"

/* The namespace of a tenant and a salt. */
static struct wire_request isolated(const char *tenant, uint8_t salt)
{
    struct wire_request r = {.salt = {salt}};

    policy_tenant(tenant, r.tenant);
    policy_isolate(&r);
    return r;
}

static bool same_salt(struct wire_request a, struct wire_request b)
{
    return memcmp(a.salt, b.salt, sizeof a.salt) == 0;
}

static void test_isolate(void)
{
    ok(same_salt(isolated("a", 1), isolated("a", 1)), "a tenant has one namespace a salt");
    ok(!same_salt(isolated("a", 1), isolated("b", 1)), "not another's");
    ok(!same_salt(isolated("a", 1), isolated("a", 2)), "not another salt's");
    ok(!same_salt(isolated("a", 0), isolated("", 0)), "and not that of none");
    ok(same_salt(isolated("", 1), (struct wire_request){.salt = {1}}),
       "one that has its salt alone");
}

int main(void)
{
    static const char *const names[] = {
        "",
        "alice",
        "a name of thirty-one characters",
        "a name of thirty-two characters!",
        "a name of thirty-two characters?",
        "a name of thirty-two characters, and then some",
    };
    enum { N = sizeof names / sizeof names[0] };
    char got[N][WIRE_TENANT_BYTES];
    bool ends = true, differ = true, same = true;

    for (size_t i = 0; i < N; i++) {
        char again[WIRE_TENANT_BYTES];

        memset(got[i], 'x', sizeof got[i]);
        memset(again, 'y', sizeof again);
        policy_tenant(names[i], got[i]);
        policy_tenant(names[i], again);
        ends = ends && memchr(got[i], '\0', sizeof got[i]) != NULL;
        same = same && memcmp(got[i], again, sizeof again) == 0;
        for (size_t k = 0; k < i; k++)
            differ = differ && memcmp(got[i], got[k], sizeof got[i]) != 0;
    }
    is_text(got[1], "alice", "a short name is itself");
    is_text(got[2], names[2], "so is the longest that fits");
    ok(strncmp(got[4], names[4], 20) == 0, "a longer one keeps its beginning (%s)", got[4]);
    ok(ends, "each ends with a NUL");
    ok(same, "all bytes are set");
    ok(differ, "different names stay different");
    test_isolate();
    return tap_done();
}
