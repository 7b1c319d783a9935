/* SPDX-License-Identifier: Apache-2.0
 *
 * A model by the name that it has on the Hugging Face hub, in the cache of its tools on this disk:
 *
 *   HUB/models--ORG--NAME/refs/main               the name of a snapshot
 *   HUB/models--ORG--NAME/snapshots/SNAPSHOT/     the model's folder
 *
 * HUB is $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub. Nothing is downloaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/serve.h"

#define HUB_REF_MAX 128

static const char *hub_folder(struct serve *s)
{
    const char *at = getenv("HF_HUB_CACHE"), *home = getenv("HF_HOME");

    if (at != NULL && at[0] != '\0')
        return at;
    if (home != NULL && home[0] != '\0')
        return serve_text(s, "%s/hub", home);
    home = getenv("HOME");
    return serve_text(s, "%s/.cache/huggingface/hub", home != NULL ? home : "");
}

bool serve_is_hub_name(const char *name)
{
    const char *slash = strchr(name, '/');

    return slash != NULL && slash != name && slash[1] != '\0' && strchr(slash + 1, '/') == NULL &&
           name[0] != '.' && name[0] != '~' && name[strcspn(name, " \t\r\n")] == '\0';
}

const char *serve_hub_find(struct serve *s, const char *name)
{
    const char *slash = strchr(name, '/'), *kept, *folder;
    char ref[HUB_REF_MAX] = "";
    FILE *f;

    if (!serve_is_hub_name(name))
        return NULL;
    kept =
        serve_text(s, "%s/models--%.*s--%s", hub_folder(s), (int)(slash - name), name, slash + 1);
    f = fopen(serve_text(s, "%s/refs/main", kept), "re");
    if (f == NULL)
        return NULL;
    if (fgets(ref, sizeof ref, f) == NULL)
        ref[0] = '\0';
    (void)fclose(f); /* was only read */
    ref[strcspn(ref, "\r\n")] = '\0';
    folder = serve_text(s, "%s/snapshots/%s", kept, ref);
    return ref[0] != '\0' && strchr(ref, '/') == NULL && access(folder, R_OK) == 0 ? folder : NULL;
}
