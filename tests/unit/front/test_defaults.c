/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: defaults are what generation_config.json says, or what they were. Method: files with good
 * and bad members. */
#include "front/request/defaults.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/tap.h"

static char dir[64] = "/tmp/test_presets.XXXXXX";

static int read_text(struct defaults *p, const char *text, char why[200])
{
    char path[128];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/generation_config.json", dir);
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        exit(1);
    why[0] = '\0';
    defaults_init(p);
    return defaults_read(p, dir, why, 200);
}

static const char *const bad[] = {
    "{\"temperature\":-1}",
    "{\"temperature\":\"1\"}",
    "{\"top_p\":0}",
    "{\"top_p\":1.5}",
    "{\"top_k\":-2}",
    "{\"min_p\":2}",
    "{\"repetition_penalty\":0}",
    "{\"max_new_tokens\":0}",
    "{\"temperature\":1,}",
    "{\"temperature\":[]}",
    "{\"max_new_tokens\":1e300}",
};

int main(void)
{
    struct defaults p;
    char why[200];

    if (mkdtemp(dir) == NULL)
        return 1;
    defaults_init(&p);
    is_int(defaults_read(&p, dir, why, sizeof why), ERR_OK, "no file");
    ok(p.sampling.temperature == 1.0f && p.sampling.top_p == 1.0f && p.sampling.top_k == 0 &&
           p.sampling.min_p == 0.0f && p.sampling.repetition_penalty == 1.0f && p.max_tokens == 0,
       "changes nothing");
    must_ok(read_text(&p,
                      "{\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,\"min_p\":0.25,"
                      "\"repetition_penalty\":1.05,\"max_new_tokens\":77,\"do_sample\":true}",
                      why));
    ok(p.sampling.temperature == 0.6f && p.sampling.top_p == 0.9f && p.sampling.top_k == 20 &&
           p.sampling.min_p == 0.25f && p.sampling.repetition_penalty == 1.05f &&
           p.max_tokens == 77,
       "all members");
    must_ok(read_text(&p, "{\"temperature\":null,\"top_k\":-1}", why));
    ok(p.sampling.temperature == 1.0f && p.sampling.top_k == 0, "null, and -1 for off");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ok(read_text(&p, bad[i], why) != ERR_OK, "refused: %s", bad[i]);
        ok(strstr(why, "generation_config.json") != NULL, "by name: %s", why);
        ok(p.sampling.temperature == 1.0f && p.sampling.top_p == 1.0f, "nothing changed");
    }
    (void)unlink(strcat(dir, "/generation_config.json"));
    *strrchr(dir, '/') = '\0';
    (void)rmdir(dir);
    return tap_done();
}
