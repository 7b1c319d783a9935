/* SPDX-License-Identifier: Apache-2.0
 *
 * GET /openapi.json, /v1, /tokenizer_info and /server_info, and POST /invocations. The description
 * of the API is made from the tables of route.c and fields.c, so that it cannot differ from the
 * server's behaviour. */
#include <config.h>
#include <string.h>

#include "front/api/api.h"
#include "front/request/fields.h"
#include "text/file.h"

#define API_CONFIG_BYTES_MAX ((size_t)16 << 20)

/* Answer with a description. */
static void api_reply_described(struct exchange *x, struct buf *b)
{
    if (b->failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    else
        exchange_reply(x, 200, "application/json", b->bytes, b->len);
    buf_fini(b);
}

/* The schema of a request body, made from the table of fields. */
static void api_add_schema(struct buf *b, const char *name, enum exchange_format format,
                           const char *required)
{
    buf_printf(b, "\"%s\":{\"type\":\"object\",\"required\":[\"%s\"],\"properties\":{", name,
               required);
    fields_describe(b, format);
    buf_add_text(b, "}}");
}

/* The description in OpenAPI's form. */
void api_openapi(struct front *f, struct exchange *x, const struct json *body)
{
    struct buf buf = {0};

    (void)f;
    (void)body;
    buf_add_text(
        &buf, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"quire\",\"version\":\"" PACKAGE_VERSION
              "\"},\"servers\":[{\"url\":\"/\"}],\"security\":"
              "[{\"bearer\":[]}],\"paths\":{");
    route_describe(&buf);
    buf_add_text(&buf, "},\"components\":{\"securitySchemes\":{\"bearer\":{\"type\":\"http\","
                       "\"scheme\":\"bearer\"}},\"schemas\":{");
    api_add_schema(&buf, "ChatCompletionRequest", EXCHANGE_CHAT, "messages");
    buf_add_byte(&buf, ',');
    api_add_schema(&buf, "CompletionRequest", EXCHANGE_COMPLETION, "prompt");
    buf_add_text(&buf, "}}}");
    api_reply_described(x, &buf);
}

/* The paths alone, for a person with a browser or curl. */
void api_index(struct front *f, struct exchange *x, const struct json *body)
{
    struct buf buf = {0};

    (void)f;
    (void)body;
    buf_add_text(&buf, "{\"object\":\"api\",\"version\":\"" PACKAGE_VERSION "\",\"model\":");
    buf_add_json_string(&buf, x->served->model_name, strlen(x->served->model_name));
    buf_add_text(&buf, ",\"description\":\"/openapi.json\",\"paths\":{");
    route_describe(&buf);
    buf_add_text(&buf, "}}");
    api_reply_described(x, &buf);
}

/* tokenizer_config.json, unchanged, for clients that render and count themselves. */
void api_tokenizer_info(struct front *f, struct exchange *x, const struct json *body)
{
    struct buf buf = {0};
    char why[300] = "";
    int rc = file_read(&buf, x->served->settings.model, "tokenizer_config.json",
                       API_CONFIG_BYTES_MAX, why, sizeof why);

    (void)f;
    (void)body;
    if (rc == ERR_OK) {
        api_reply_described(x, &buf);
        return;
    }
    buf_fini(&buf);
    exchange_reply_error(x, rc == ERR_NOT_FOUND ? ERR_NOT_FOUND : ERR_IO,
                         "the model's folder has no tokenizer_config.json", NULL, 0);
}

/* The settings of this front, for operators. Paths of key files are shown, keys are not. */
void api_server_info(struct front *f, struct exchange *x, const struct json *body)
{
    struct buf buf = {0};

    (void)body;
    buf_add_text(&buf, "{\"version\":\"" PACKAGE_VERSION "\",\"settings\":{");
    settings_describe(&f->settings, 'F', &buf);
    buf_add_text(&buf, "}}");
    api_reply_described(x, &buf);
}

/* The route's shape is OpenAI's chat; a response has another. */
static void api_invoke_responses(struct front *f, struct exchange *x, const struct json *body)
{
    x->shape = SHAPE_RESPONSES; /* errors and events need the shape, too */
    api_responses(f, x, body);
}

/* SageMaker's only path: the body's members select the endpoint. */
void api_invocations(struct front *f, struct exchange *x, const struct json *body)
{
    if (json_get(body, "messages") != NULL)
        api_chat(f, x, body);
    else if (json_get(body, "prompt") != NULL)
        api_completions(f, x, body);
    else if (json_get(body, "input") != NULL && x->served->pooling.kind != POOLING_NONE)
        api_embeddings(f, x, body);
    else if (json_get(body, "input") != NULL)
        api_invoke_responses(f, x, body);
    else
        exchange_reply_error(x, ERR_INVALID, "the body must have 'messages', 'prompt' or 'input'",
                             NULL, 0);
}
