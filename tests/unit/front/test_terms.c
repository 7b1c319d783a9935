/* Goal: tenants of different names stay different, however long the names are. Method: names at the
 * border of what a request has room for. */
#include "front/terms.h"
#include "tests/tap.h"

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
        terms_tenant(names[i], got[i]);
        terms_tenant(names[i], again);
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
    return tap_done();
}
