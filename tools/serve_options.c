/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line of quire serve. An option is looked for in four tables, in this order:
 *
 *   own      host, port, keys, which are nginx's; and vLLM's names of parts of a setting
 *   aliases  vLLM's names for settings: passed as those, under quire's name
 *   foreign  options that need nothing here, or are refused (vllm_options.def): a line says why
 *   settings those of settings.def: passed to the programs that have them
 *
 * Any other is refused. The settings are then read as the programs would read them, so that a bad
 * value is told before anything is started. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/names.h"
#include "base/near.h"
#include "tools/serve.h"

#define OPTIONS_NAME_MAX 64
#define OPTIONS_KEY_MAX  200 /* map_hash_bucket_size of nginx/quire-http.conf is 256 */

enum options_own {
    OWN_HELP,
    OWN_HOST,
    OWN_PORT,
    OWN_UDS,
    OWN_KEY,
    OWN_CERT,
    OWN_CERT_KEY,
    OWN_ORIGINS,
    OWN_FRONTS,
    OWN_LOG,
    OWN_NO_PAGE,
    OWN_READERS,
    OWN_MODELS,
    OWN_DRAFT,
    OWN_DRAFTED,
    OWN_DRAFT_METHOD,
    OWN_ROPE,
    OWN_THETA
};

static const struct {
    const char *name;
    enum options_own own;
    bool has_value;
} options_own_rows[] = {
    {"help", OWN_HELP, false},
    {"h", OWN_HELP, false},
    {"host", OWN_HOST, true},
    {"port", OWN_PORT, true},
    {"uds", OWN_UDS, true},
    {"api-key", OWN_KEY, true},
    {"ssl-certfile", OWN_CERT, true},
    {"ssl-keyfile", OWN_CERT_KEY, true},
    {"allowed-origins", OWN_ORIGINS, true},
    {"api-server-count", OWN_FRONTS, true},
    {"enable-log-requests", OWN_LOG, false},
    {"no-page", OWN_NO_PAGE, false},
    {"metrics-from", OWN_READERS, true},
    {"models-dir", OWN_MODELS, true},
    {"speculative-model", OWN_DRAFT, true},
    {"num-speculative-tokens", OWN_DRAFTED, true},
    {"spec-model", OWN_DRAFT, true},
    {"spec-tokens", OWN_DRAFTED, true},
    {"spec-method", OWN_DRAFT_METHOD, true},
    {"rope-scaling", OWN_ROPE, true},
    {"rope-theta", OWN_THETA, true},
};

/* Names and programs of all settings; flags may stand without a value, as with vLLM. */
enum options_type { OPTION_TEXT, OPTION_INT, OPTION_BYTES, OPTION_REAL, OPTION_FLAG };

static const struct options_setting {
    const char *name;
    enum options_type type;
    const char *programs;
} options_settings[] = {
#define CONF(type, name, preset, low, high, programs, help) {#name, OPTION_##type, programs},
#include "base/settings.def"
#undef CONF
};

/* vLLM's names; docs/coming-from-vllm.md has the same table. */
static const struct {
    const char *name, *setting;
    const char *unit; /* put after the value */
} options_aliases[] = {
    {"num-gpu-blocks-override", "num_pages", ""},
    {"block-size", "page_tokens", ""},
    {"kv-offloading-size", "kv_host_bytes", "G"},
    {"shutdown-timeout", "drain_timeout_s", ""},
    {"sse-keep-alive-interval", "keepalive_s", ""},
    {"uvicorn-log-level", "log_level", ""},
    {"tp", "tensor_parallel_size", ""},
    {"pp", "pipeline_parallel_size", ""},
    {"dp", "data_parallel_size", ""},
    {"q", "quantization", ""},
    {"n", "nnodes", ""},
};

/* vLLM's options without effect here, and those that are refused: a line says why. */
enum options_foreign { FOREIGN_FLAG, FOREIGN_VALUE, FOREIGN_REFUSED };

static const struct {
    const char *name;
    enum options_foreign kind;
    const char *reason;
} options_foreign[] = {
#define SILENT(kind, name, reason) {#name, FOREIGN_##kind, reason},
#define REFUSED(name, reason)      {#name, FOREIGN_REFUSED, reason},
#include "tools/vllm_options.def"
#undef SILENT
#undef REFUSED
};

#define N_FOREIGN (sizeof options_foreign / sizeof options_foreign[0])

static const char options_usage[] =
    "usage: quire serve FOLDER|FILE.gguf... [options] [settings]\n"
    "\n"
    "Serves a model in the foreground, without root: nginx, fronts and an engine, as a service\n"
    "has them, in a private folder. Ctrl-C ends all of them after the running requests. An engine\n"
    "or a front that dies is started again, and streams go on. ORG/NAME is a model in the cache\n"
    "of the Hugging Face hub on this disk.\n"
    "\n"
    "With several models, or --models-dir, each has an engine that starts with the first request\n"
    "for it; --models-max N lets at most N of them be awake.\n"
    "\n"
    "  --host NAME           127.0.0.1  address to listen on; 0.0.0.0: all\n"
    "  --port N              8000       0: a free one\n"
    "  --uds PATH                       a unix socket instead of host and port\n"
    "  --api-key KEY                    requests need this key; may be repeated. Default: none\n"
    "  --allowed-origins X              sites whose pages may ask: *, an origin, or a JSON list\n"
    "  --ssl-certfile FILE              serve HTTPS; with --ssl-keyfile FILE\n"
    "  --api-server-count N  2          fronts\n"
    "  --enable-log-requests            log requests (not prompts) in the private folder\n"
    "  --metrics-from X                 address or network (10.0.0.0/8) that may read /metrics,\n"
    "                                   besides this machine; may be repeated\n"
    "  --no-page                        no page in the browser, the API alone\n"
    "  --models-dir DIR                 a file NAME.conf with settings for each of several models\n"
    "  --config FILE                    lines `name = value` with settings\n"
    "\n"
    "Settings are those of quire-engine --help and quire-front --help, with dashes or\n"
    "underscores. A flag needs no value, and --no-NAME sets it to false. vLLM's other names of\n"
    "settings work as well (docs/coming-from-vllm.md).\n"
    "\n"
    "Exit status: 0 stopped by a signal, 1 a program ended or could not be started, 2 usage.\n";

void serve_args_add(struct serve_args *args, const char *arg)
{
    if (args->n + 1 >= SERVE_ARGS_MAX) {
        serve_say("there are more than %d arguments", SERVE_ARGS_MAX);
        exit(2);
    }
    args->at[args->n++] = arg;
    args->at[args->n] = NULL;
}

/* One option while it is read. */
struct options_arg {
    char name[OPTIONS_NAME_MAX]; /* with underscores, without the dashes before it */
    const char *given;           /* as it was written */
    const char *value;           /* after "="; NULL: the next argument, if it has one */
};

/* Is a name of a table, which may have dashes, the option's? */
static bool options_is(const struct options_arg *arg, const char *name)
{
    size_t i = 0;

    while (name[i] != '\0' && (name[i] == arg->name[i] || (name[i] == '-' && arg->name[i] == '_')))
        i++;
    return name[i] == '\0' && arg->name[i] == '\0';
}

/* Take an option apart. False: it is not one. */
static bool options_split(struct options_arg *arg, const char *text)
{
    const char *name = text + strspn(text, "-");
    size_t len = strcspn(name, "=");

    if (name == text || name - text > 2 || len == 0 || len >= sizeof arg->name)
        return false;
    for (size_t i = 0; i <= len; i++) {
        arg->name[i] = name[i] == '-' ? '_' : name[i];
        if (i == len)
            arg->name[i] = '\0';
    }
    arg->given = text;
    arg->value = name[len] == '=' ? name + len + 1 : NULL;
    return true;
}

/* The option's value; it may be the next argument. NULL (told): there is none. */
static const char *options_value(const struct options_arg *arg, int *i, int argc, char **argv)
{
    if (arg->value != NULL)
        return arg->value;
    if (*i + 1 < argc)
        return argv[++*i];
    serve_say("%s needs a value", arg->given);
    return NULL;
}

static bool options_is_flag_value(const char *text)
{
    static const char *const values[] = {"true", "false", "1", "0", "yes", "no", "on", "off"};

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (strcmp(text, values[i]) == 0)
            return true;
    }
    return false;
}

static bool options_number(const char *name, const char *text, int low, int high, int *out)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0' || n < low || n > high) {
        serve_say("%s must be a number from %d to %d, not \"%s\"", name, low, high, text);
        return false;
    }
    *out = (int)n;
    return true;
}

/* Texts of nginx's maps stand in quotes there. */
static bool options_list_add(struct serve_list *list, const char *what, const char *text)
{
    if (list->n == SERVE_LIST_MAX) {
        serve_say("there are more than %d of %s", SERVE_LIST_MAX, what);
        return false;
    }
    if (*text == '\0' || strlen(text) > OPTIONS_KEY_MAX ||
        strpbrk(text, "\"\\ \t\r\n;{}$") != NULL) {
        serve_say("%s takes no text that is empty, longer than %d bytes, or has blanks, quotes, "
                  "backslashes, semicolons, braces or dollars",
                  what, OPTIONS_KEY_MAX);
        return false;
    }
    list->at[list->n++] = text;
    return true;
}

/* "*", an origin, or a JSON list of these. */
static bool options_origins(struct serve *s, const char *text)
{
    const struct json *list;
    char why[160];

    if (text[0] != '[')
        return options_list_add(&s->wishes.origins, "--allowed-origins", text);
    if (json_parse(&list, &s->arena, text, strlen(text), why, sizeof why) != ERR_OK) {
        serve_say("--allowed-origins: %s", why);
        return false;
    }
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *item = &list->items[i];

        if (item->kind != JSON_TEXT || json_has_nul(item)) {
            serve_say("--allowed-origins must be a list of texts");
            return false;
        }
        if (!options_list_add(&s->wishes.origins, "--allowed-origins", item->text))
            return false;
    }
    return true;
}

/* The absolute path of a file that exists. */
static bool options_file(struct serve *s, const char *name, const char *text, const char **out)
{
    char path[PATH_MAX];

    if (realpath(text, path) == NULL || access(path, R_OK) != 0) {
        serve_say("%s %s: %s", name, text, strerror(errno));
        return false;
    }
    *out = serve_text(s, "%s", path);
    return true;
}

/* An address or a network, as nginx's allow takes it. */
static bool options_reader(struct serve *s, const char *text)
{
    char address[INET6_ADDRSTRLEN];
    unsigned char bytes[sizeof(struct in6_addr)];
    size_t len = strcspn(text, "/");
    int bits = 0, family = memchr(text, ':', len) == NULL ? AF_INET : AF_INET6;

    (void)snprintf(address, sizeof address, "%.*s", len < sizeof address ? (int)len : 0, text);
    if (inet_pton(family, address, bytes) == 1 &&
        (text[len] == '\0' ||
         options_number("--metrics-from", text + len + 1, 0, family == AF_INET ? 32 : 128, &bits)))
        return options_list_add(&s->wishes.readers, "--metrics-from", text);
    serve_say("--metrics-from takes an address or a network such as 10.0.0.0/8, not \"%s\"", text);
    return false;
}

static bool options_set_own(struct serve *s, enum options_own own, const char *value)
{
    struct serve_wishes *w = &s->wishes;

    switch (own) {
    case OWN_HELP: (void)fputs(options_usage, stdout); exit(0);
    case OWN_HOST: w->host = value; return true;
    case OWN_PORT: return options_number("--port", value, 0, 65535, &w->port);
    case OWN_UDS:
        w->uds = value[0] == '/' ? value : "";
        if (w->uds[0] == '\0' || strlen(value) > 100 || strpbrk(value, " \t\r\n;{}\"'\\$") != NULL)
            serve_say("--uds must be an absolute path of at most 100 plain characters");
        return w->uds[0] != '\0' && strlen(value) <= 100 &&
               strpbrk(value, " \t\r\n;{}\"'\\$") == NULL;
    case OWN_KEY: return options_list_add(&w->keys, "--api-key", value);
    case OWN_CERT: return options_file(s, "--ssl-certfile", value, &w->cert);
    case OWN_CERT_KEY: return options_file(s, "--ssl-keyfile", value, &w->cert_key);
    case OWN_ORIGINS: return options_origins(s, value);
    case OWN_FRONTS:
        return options_number("--api-server-count", value, 1, SERVE_FRONTS_MAX, &w->n_fronts);
    case OWN_MODELS: return options_file(s, "--models-dir", value, &w->models_dir);
    case OWN_LOG: w->logs_requests = true; return true;
    case OWN_READERS: return options_reader(s, value);
    case OWN_NO_PAGE: w->has_no_page = true; return true;
    case OWN_DRAFT: w->draft = value; return true;
    case OWN_DRAFTED:
        return options_number("--num-speculative-tokens", value, 1, INT_MAX, &w->n_drafted);
    case OWN_DRAFT_METHOD: w->draft_method = value; return true;
    case OWN_ROPE: w->rope_scaling = value; return true;
    case OWN_THETA: w->rope_theta = value; return true;
    }
    return false;
}

/* vLLM's ways of writing a number: 32k is 32,000, 32K is 32,768, and max_model_len may be auto or
 * -1. Other values stay as they are, and are refused by their reader where they are wrong. */
static const char *options_plain_number(struct serve *s, const struct options_setting *setting,
                                        const char *value)
{
    static const char letters[] = "kmgt";
    const char *letter;
    double number, by = 1.0;
    char *end;

    if (strcmp(setting->name, "max_model_len") == 0 &&
        (strcmp(value, "auto") == 0 || strcmp(value, "-1") == 0))
        return "0";
    if (setting->type != OPTION_INT || value[0] < '0' || value[0] > '9')
        return value;
    number = strtod(value, &end);
    if (end[0] == '\0' || end[1] != '\0' ||
        (letter = strchr(letters, end[0] | ('a' - 'A'))) == NULL)
        return value;
    for (const char *at = letters; at <= letter; at++)
        by *= end[0] >= 'a' ? 1000.0 : 1024.0;
    number *= by;
    if (number > 1e15 || number != (double)(long long)number)
        return value;
    return serve_text(s, "%lld", (long long)number);
}

/* Pass a setting to the programs that have it. */
static void options_pass(struct serve *s, const struct options_setting *setting, const char *value)
{
    const char *arg =
        serve_text(s, "--%s=%s", setting->name, options_plain_number(s, setting, value));

    if (strchr(setting->programs, 'E') != NULL)
        serve_args_add(&s->wishes.engine, arg);
    if (strchr(setting->programs, 'F') != NULL)
        serve_args_add(&s->wishes.front, arg);
}

static const struct options_setting *options_find(const struct options_arg *arg)
{
    for (size_t i = 0; i < sizeof options_settings / sizeof options_settings[0]; i++) {
        if (options_is(arg, options_settings[i].name))
            return &options_settings[i];
    }
    return NULL;
}

/* Names of a model, as vLLM takes them: several arguments, up to the next option. Before the model
 * it is one, because the next one may be the model. */
static const char *options_names(struct serve *s, const char *first, int *i, int argc, char **argv)
{
    const char *names = first;

    while (s->wishes.has_model && *i + 1 < argc && argv[*i + 1][0] != '-')
        names = serve_text(s, "%s,%s", names, argv[++*i]);
    return names;
}

/* Adapters, as vLLM takes them: several arguments, NAME=FOLDER or JSON objects. */
static const char *options_adapters(struct serve *s, const char *first, int *i, int argc,
                                    char **argv)
{
    const char *adapters = first;

    while (*i + 1 < argc && argv[*i + 1][0] != '-' &&
           (argv[*i + 1][0] == '{' || strchr(argv[*i + 1], '=') != NULL))
        adapters = serve_text(s, "%s,%s", adapters, argv[++*i]);
    return adapters;
}

/* A setting by its own name: "name", or "no_name" of a flag. *found says whether there is one. */
static bool options_read_setting(struct serve *s, const struct options_arg *arg, int *i, int argc,
                                 char **argv, bool *found)
{
    const struct options_setting *setting = options_find(arg);
    const char *value = arg->value;
    struct options_arg positive = *arg;
    bool is_no = setting == NULL && strncmp(arg->name, "no_", 3) == 0;

    if (is_no) {
        memmove(positive.name, arg->name + 3, strlen(arg->name + 3) + 1);
        setting = options_find(&positive);
    }
    *found = setting != NULL && (!is_no || setting->type == OPTION_FLAG);
    if (!*found)
        return true;
    if (is_no) {
        value = "false";
    } else if (setting->type == OPTION_FLAG && value == NULL &&
               (*i + 1 == argc || !options_is_flag_value(argv[*i + 1]))) {
        value = "true";
    } else {
        value = options_value(arg, i, argc, argv);
        if (value == NULL)
            return false;
    }
    if (strcmp(setting->name, "served_model_name") == 0) {
        value = options_names(s, value, i, argc, argv);
        s->wishes.has_names = true;
    }
    if (strcmp(setting->name, "lora_modules") == 0)
        value = options_adapters(s, value, i, argc, argv);
    options_pass(s, setting, value);
    return true;
}

/* vLLM's other names, and its options that need nothing. */
static bool options_read_foreign(struct serve *s, const struct options_arg *arg, int *i, int argc,
                                 char **argv, bool *found)
{
    *found = true;
    for (size_t k = 0; k < sizeof options_aliases / sizeof options_aliases[0]; k++) {
        struct options_arg setting = {.given = arg->given};
        const char *value;

        if (!options_is(arg, options_aliases[k].name))
            continue;
        (void)snprintf(setting.name, sizeof setting.name, "%s", options_aliases[k].setting);
        value = options_value(arg, i, argc, argv);
        if (value != NULL)
            options_pass(s, options_find(&setting),
                         serve_text(s, "%s%s", value, options_aliases[k].unit));
        return value != NULL;
    }
    for (size_t k = 0; k < N_FOREIGN; k++) {
        enum options_foreign kind = options_foreign[k].kind;
        bool is_no = kind == FOREIGN_FLAG && strncmp(arg->name, "no_", 3) == 0;
        struct options_arg positive = *arg;

        if (is_no)
            memmove(positive.name, arg->name + 3, strlen(arg->name + 3) + 1);
        if (!options_is(arg, options_foreign[k].name) &&
            !(is_no && options_is(&positive, options_foreign[k].name)))
            continue;
        if (kind == FOREIGN_VALUE && options_value(arg, i, argc, argv) == NULL)
            return false;
        if (kind == FOREIGN_REFUSED)
            serve_say("%s is not an option of this command: %s", arg->given,
                      options_foreign[k].reason);
        else
            serve_say("%s has no effect: %s", arg->given, options_foreign[k].reason);
        return kind != FOREIGN_REFUSED;
    }
    *found = false;
    return true;
}

/* No table has the option: say which one may be meant. */
static void options_unknown(struct serve *s, const struct options_arg *arg)
{
    struct near near = {.word = arg->name};

    for (size_t k = 0; k < sizeof options_own_rows / sizeof options_own_rows[0]; k++)
        near_try(&near, options_own_rows[k].name);
    for (size_t k = 0; k < sizeof options_settings / sizeof options_settings[0]; k++)
        near_try(&near, options_settings[k].name);
    for (size_t k = 0; k < sizeof options_aliases / sizeof options_aliases[0]; k++)
        near_try(&near, options_aliases[k].name);
    for (size_t k = 0; k < N_FOREIGN; k++)
        near_try(&near, options_foreign[k].name);
    if (near.name != NULL) {
        char *name = (char *)(uintptr_t)serve_text(s, "%s", near.name);

        for (char *at = name; (at = strchr(at, '_')) != NULL;)
            *at = '-';
        serve_say("unknown option \"%s\"; is --%s meant? See quire serve --help", arg->given, name);
    } else {
        serve_say("unknown option \"%s\": neither this command nor quire-engine or quire-front has "
                  "it; see quire serve --help",
                  arg->given);
    }
}

/* One option, found in the tables in their order. */
static bool options_read_one(struct serve *s, const struct options_arg *arg, int *i, int argc,
                             char **argv)
{
    bool found = false, good;

    for (size_t k = 0; k < sizeof options_own_rows / sizeof options_own_rows[0]; k++) {
        const char *value = "";

        if (!options_is(arg, options_own_rows[k].name))
            continue;
        if (options_own_rows[k].has_value)
            value = options_value(arg, i, argc, argv);
        return value != NULL && options_set_own(s, options_own_rows[k].own, value);
    }
    good = options_read_foreign(s, arg, i, argc, argv, &found);
    if (!found)
        good = options_read_setting(s, arg, i, argc, argv, &found);
    if (!found)
        options_unknown(s, arg);
    return found && good;
}

/* Is this a model's folder or a file? The engine says more; this is for the common mistakes. */
static bool options_check_model(const char *model)
{
    char config[PATH_MAX];
    struct stat st;

    if (model[0] == '\0') {
        serve_say(
            "which model? quire serve FOLDER, a Hugging Face folder, or quire serve FILE.gguf");
        return false;
    }
    if (stat(model, &st) == -1 && serve_is_hub_name(model)) {
        serve_say(
            "there is no model at %s, nor one of this name in the Hugging Face cache; fetch it "
            "with: hf download %s",
            model, model);
        return false;
    }
    if (stat(model, &st) == -1) {
        serve_say("there is no model at %s: name a Hugging Face folder on this disk, or a GGUF "
                  "file; nothing is downloaded",
                  model);
        return false;
    }
    if (S_ISREG(st.st_mode))
        return true;
    if (snprintf(config, sizeof config, "%s/config.json", model) < (int)sizeof config &&
        access(config, R_OK) == 0)
        return true;
    serve_say("%s has no config.json: name a Hugging Face folder or a GGUF file", model);
    return false;
}

/* A folder without slashes at its end, and with a last part that is a name. */
static const char *options_model_path(struct serve *s, const char *given)
{
    char *text = (char *)(uintptr_t)serve_text(s, "%s", given);
    size_t len = strlen(text);
    const char *last;
    char path[PATH_MAX];

    while (len > 1 && text[len - 1] == '/')
        text[--len] = '\0';
    last = strrchr(text, '/') == NULL ? text : strrchr(text, '/') + 1;
    if ((strcmp(last, ".") == 0 || strcmp(last, "..") == 0) && realpath(text, path) != NULL)
        return serve_text(s, "%s", path);
    return text;
}

/* Read the settings as the programs will. */
static bool options_check_settings(struct serve *s)
{
    struct serve_args *of[] = {&s->wishes.front, &s->wishes.engine};

    for (int i = 0; i < 2; i++) { /* the engine's are kept */
        const char *argv[SERVE_ARGS_MAX + 1] = {"quire serve"};
        bool exit_now = false;

        for (int k = 0; k < of[i]->n; k++)
            argv[k + 1] = of[i]->at[k];
        settings_fini(&s->wishes.settings);
        if (settings_read(&s->wishes.settings, i == 0 ? 'F' : 'E', of[i]->n + 1,
                          (char **)(uintptr_t)argv, &exit_now) != ERR_OK)
            return false;
    }
    if (s->wishes.settings.node_rank > 0) {
        serve_say("node_rank is above 0 in the file of --config: this command is node 0");
        return false;
    }
    return true;
}

/* What no single option can tell. */
static bool options_check(struct serve *s)
{
    struct serve_wishes *w = &s->wishes;
    static struct names names; /* it is pointed into */

    if (!options_check_settings(s) || !serve_models_read(s))
        return false;
    for (int i = 0; i < w->paths.n && s->models.n > 0; i++) {
        if (!options_check_model(w->paths.at[i]))
            return false;
    }
    if (s->models.n == 0 && !options_check_model(w->settings.model))
        return false;
    if ((w->cert[0] == '\0') != (w->cert_key[0] == '\0')) {
        serve_say("--ssl-certfile and --ssl-keyfile belong together");
        return false;
    }
    if (names_read(&names, w->settings.served_model_name, w->settings.model) != ERR_OK)
        return false;
    w->name = names.at[0];
    for (int i = 0; i < s->models.n; i++)
        w->name =
            i == 0 ? s->models.names[0] : serve_text(s, "%s, %s", w->name, s->models.names[i]);
    if (s->models.n > 0 &&
        (w->settings.data_parallel_size > 1 || w->settings.served_model_name[0])) {
        serve_say("served_model_name and data_parallel_size are for one model");
        return false;
    }
    if (w->keys.n == 0 && w->uds[0] == '\0' && strncmp(w->host, "127.", 4) != 0 &&
        strcmp(w->host, "localhost") != 0 && strcmp(w->host, "::1") != 0)
        serve_say(
            "warning: every client that reaches port %d of %s may use the model; --api-key KEY "
            "prevents it",
            w->port, w->host);
    return true;
}

/* vLLM's short and older options for drafts, as speculative_config. Without a method a model is a
 * draft model. */
static bool options_draft(struct serve *s)
{
    static const struct options_setting setting = {"speculative_config", OPTION_TEXT, "E"};
    struct serve_wishes *w = &s->wishes;
    bool has_model = w->draft[0] != '\0' && strcmp(w->draft, "[ngram]") != 0;
    const char *method = has_model ? "draft_model" : "ngram";
    struct buf json = {0};

    if (w->draft[0] == '\0' && w->draft_method[0] == '\0' && w->n_drafted == 0)
        return true;
    if ((w->draft[0] == '\0' && w->draft_method[0] == '\0') || w->n_drafted == 0) {
        serve_say("--speculative-model (--spec-model), or --spec-method, and "
                  "--num-speculative-tokens (--spec-tokens) belong together");
        return false;
    }
    if (w->draft_method[0] != '\0')
        method = w->draft_method;
    buf_printf(&json, "{\"num_speculative_tokens\": %d, \"method\": ", w->n_drafted);
    buf_add_json_string(&json, method, strlen(method));
    if (has_model) {
        buf_add_text(&json, ", \"model\": ");
        buf_add_json_string(&json, w->draft, strlen(w->draft));
    }
    buf_add_byte(&json, '}');
    options_pass(s, &setting, serve_text(s, "%s", buf_text(&json)));
    buf_fini(&json);
    return true;
}

/* vLLM's older options for positions, as hf_overrides. */
static bool options_ropes(struct serve *s)
{
    static const struct options_setting setting = {"hf_overrides", OPTION_TEXT, "EF"};
    const struct serve_wishes *w = &s->wishes;
    bool has_scaling = w->rope_scaling[0] != '\0', has_theta = w->rope_theta[0] != '\0';

    if (!has_scaling && !has_theta)
        return true;
    for (int i = 0; i < w->engine.n; i++) {
        if (strncmp(w->engine.at[i], "--hf_overrides=", 15) != 0)
            continue;
        serve_say("--rope-scaling and --rope-theta are members of --hf-overrides: give them there");
        return false;
    }
    options_pass(s, &setting,
                 serve_text(s, "{%s%s%s%s%s}", has_scaling ? "\"rope_scaling\": " : "",
                            w->rope_scaling, has_scaling && has_theta ? ", " : "",
                            has_theta ? "\"rope_theta\": " : "", w->rope_theta));
    return true;
}

/* The one model of the command line: a path, or the name of a model of the hub, by which clients
 * then ask for it. */
static void options_pass_model(struct serve *s, const char *given)
{
    static const struct options_setting model = {"model", OPTION_TEXT, "EF"};
    static const struct options_setting name = {"served_model_name", OPTION_TEXT, "EF"};
    const char *folder = access(given, F_OK) == 0 ? NULL : serve_hub_find(s, given);

    options_pass(s, &model, folder != NULL ? folder : given);
    if (folder != NULL && !s->wishes.has_names)
        options_pass(s, &name, given);
}

bool serve_options_read(struct serve *s, int argc, char **argv)
{
    struct serve_wishes *w = &s->wishes;

    *w = (struct serve_wishes){.host = "127.0.0.1",
                               .port = 8000,
                               .uds = "",
                               .cert = "",
                               .cert_key = "",
                               .models_dir = "",
                               .draft = "",
                               .draft_method = "",
                               .rope_scaling = "",
                               .rope_theta = "",
                               .n_fronts = 2};
    for (int i = 1; i < argc; i++) {
        struct options_arg arg;

        if (options_split(&arg, argv[i])) {
            if (!options_read_one(s, &arg, &i, argc, argv))
                return false;
            continue;
        }
        if (w->paths.n == SERVE_LIST_MAX) {
            serve_say("there are more than %d models", SERVE_LIST_MAX);
            return false;
        }
        w->has_model = true;
        w->paths.at[w->paths.n++] = options_model_path(s, argv[i]);
    }
    if (w->paths.n == 1)
        options_pass_model(s, w->paths.at[0]);
    return options_draft(s) && options_ropes(s) && options_check(s);
}
