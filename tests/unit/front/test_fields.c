/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: each field of a request is taken, passed over or refused by its name. Method: tables of
 * JSON bodies, read as a chat and as a completion; what was taken is looked at field by field. */
#include "front/request/fields.h"
#include "front/request/retention.h"

#include "tests/tap.h"

#define F          "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define ALLOWED(x) "{\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":" x "}," F "}"

enum { CHAT = 1, TEXT = 2, BOTH = 3 };

static const struct {
    const char *body;
    int formats;
} taken[] = {
    {"{}", BOTH},
    {"{\"model\":\"demo\"}", BOTH},
    {"{\"messages\":5}", CHAT}, /* the endpoint looks at it */
    {"{\"prompt\":5}", TEXT},
    {"{\"temperature\":0}", BOTH},
    {"{\"temperature\":2,\"top_p\":1,\"top_k\":-1,\"min_p\":0}", BOTH},
    {"{\"top_k\":2147483647,\"priority\":-2147483648}", BOTH},
    {"{\"timeout_s\":0.001}", BOTH},
    {"{\"timeout_s\":86400}", BOTH},
    {"{\"presence_penalty\":-2,\"frequency_penalty\":2,\"repetition_penalty\":0.01}", BOTH},
    {"{\"max_tokens\":1,\"min_tokens\":0}", BOTH},
    {"{\"max_completion_tokens\":2147483647}", CHAT},
    {"{\"seed\":-9223372036854775808}", BOTH},
    {"{\"seed\":18446744073709551615}", BOTH},
    {"{\"stop\":\"a\"}", BOTH},
    {"{\"stop\":[]}", BOTH},
    {"{\"stop_token_ids\":[0,2147483647]}", BOTH},
    {"{\"stop_token_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", BOTH},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":true}}", BOTH},
    {"{\"stream_options\":{\"include_usage\":true},\"stream\":true}", BOTH},
    {"{\"stream\":false,\"stream_options\":{\"include_usage\":false}}", BOTH},
    {"{\"stream\":true,\"stream_options\":{\"include_obfuscation\":false,\"x\":null}}", BOTH},
    {"{\"ignore_eos\":true,\"skip_special_tokens\":false}", BOTH},
    {"{\"num_speculative_tokens\":0}", BOTH},
    {"{\"user\":\"a\",\"request_id\":\"b\"}", BOTH},
    {"{\"metadata\":{\"a\":1},\"store\":false,\"service_tier\":\"auto\"}", CHAT},
    {"{\"store\":true}", CHAT},
    {"{\"n\":1,\"logprobs\":null,\"logit_bias\":{},\"echo\":false}", BOTH},
    {"{\"n\":128}", BOTH},
    {"{\"cache_retention\":{\"priority\":0}}", BOTH},
    {"{\"cache_retention\":{\"priority\":100,\"seconds\":31536000,\"tokens\":1}}", BOTH},
    {"{\"cache_retention\":{\"priority\":1,\"seconds\":null}}", BOTH},
    {"{\"messages\":[{\"content\":[{\"cache_control\":null},{\"cache_control\":{}},"
     "{\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}}]}]}",
     CHAT},
    {"{\"messages\":[5,{\"content\":[7]},{\"content\":\"a\"}]}", CHAT},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":null}}],"
     "\"tool_choice\":\"auto\",\"parallel_tool_calls\":false,\"include_reasoning\":false}",
     CHAT},
    {"{\"n\":3,\"best_of\":3,\"echo\":true}", TEXT},
    {"{\"echo\":true,\"temperature\":3,\"logprobs\":true}", CHAT},
    {"{\"best_of\":3,\"n\":3}", TEXT},
    {"{\"return_token_ids\":true,\"cache_salt\":\"a\",\"truncate_prompt_tokens\":-1}", BOTH},
    {"{\"documents\":[],\"request_id\":\"not a name\"}", CHAT},
    {"{\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":true}}", BOTH},
    /* Unknown fields, and those of the other endpoint. */
    {"{\"colour\":1,\"\":1,\"Model\":\"demo\"}", BOTH},
    {"{\"prompt\":\"a\"}", CHAT},
    {"{\"messages\":[],\"max_completion_tokens\":5}", TEXT},
    {"{\"logprobs\":true,\"top_logprobs\":20,\"prompt_logprobs\":0}", CHAT},
    {"{\"prompt_logprobs\":0,\"stream\":true}", BOTH},
    {"{\"logprobs\":true,\"logprob_token_ids\":[5,5,\"7\"]}", CHAT},
    {"{\"logprob_token_ids\":[5]}", TEXT},
    {"{\"logprobs\":0,\"prompt_logprobs\":20,\"echo\":true,\"max_tokens\":0}", TEXT},
    {"{\"logit_bias\":{\"7\":-1.5},\"allowed_token_ids\":[7],\"bad_words\":[\"a\"]}", BOTH},
    {"{\"logprobs\":false,\"top_logprobs\":0,\"tools\":[],\"tool_choice\":\"none\"}", CHAT},
    {"{\"best_of\":1,\"suffix\":\"\"}", TEXT},
    {"{\"response_format\":{\"type\":\"text\"}}", BOTH},
    {"{\"response_format\":{\"type\":\"json_object\"}}", BOTH},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{},"
     "\"strict\":true,\"description\":\"d\"}}}",
     BOTH},
    {"{\"structured_outputs\":{}}", BOTH},
    {"{\"structured_outputs\":{\"json\":{},\"regex\":null,\"disable_any_whitespace\":true,"
     "\"whitespace_pattern\":null,\"json_object\":false,\"disable_fallback\":true}}",
     BOTH},
    {"{\"structured_outputs\":{\"json_object\":true}}", BOTH},
    {"{\"response_format\":{\"type\":\"text\"},\"structured_outputs\":{\"choice\":[\"a\"]}}", BOTH},
    {"{\"guided_choice\":[\"a\",\"b\"]}", BOTH},
    {"{\"structured_outputs\":{\"disable_additional_properties\":true,\"json\":{}}}", BOTH},
    {"{\"truncation_side\":\"right\",\"add_special_tokens\":true}", BOTH},
    {"{\"structured_outputs\":{\"whitespace_pattern\":\" ?\",\"json\":{}}}", BOTH},
    {"{\"guided_whitespace_pattern\":\"\",\"guided_json\":{}}", BOTH},
    {"{\"guided_json\":\"{}\"}", BOTH},
    {"{\"guided_json\":{\"type\":\"null\"},\"structured_outputs\":{\"json\":{\"type\":\"null\"}}}",
     BOTH},
    {"{\"guided_json\":\"{ \\\"type\\\": \\\"null\\\" }\",\"structured_outputs\":"
     "{\"json\":{\"type\":"
     "\"null\"}}}",
     BOTH},
    {"{\"guided_regex\":\"a\",\"structured_outputs\":{\"regex\":\"a\"}}", BOTH},
    {"{\"guided_choice\":[\"a\",\"b\"],\"structured_outputs\":{\"choice\":[\"a\",\"b\"]}}", BOTH},
    {"{\"guided_grammar\":\"root ::= \\\"a\\\"\",\"structured_outputs\":{\"grammar\":\"root ::= "
     "\\\"a\\\"\"}}",
     BOTH},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{"
     "\"type\":\"null\"}}},\"structured_outputs\":{\"json\":{\"type\":\"null\"}}}",
     BOTH},
    {"{\"response_format\":{\"type\":\"json_object\"},\"structured_outputs\":"
     "{\"json_object\":true}}",
     BOTH},
    {"{\"guided_grammar\":\"root ::= \\\"a\\\"\"}", BOTH},
    {"{\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f"
     "\"}}"
     "]}",
     CHAT},
    {"{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\"}}]}",
     CHAT},
    {"{\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":["
     "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}}," F "}",
     CHAT},
    {"{\"reasoning_effort\":\"none\"}", CHAT},
    {"{\"reasoning_effort\":\"max\"}", CHAT},
    {"{\"modalities\":[\"text\"]}", CHAT},
    {"{\"return_prompt_text\":false,\"return_token_offsets\":null,\"stream_interval\":4}", CHAT},
    {"{\"chat_template_kwargs\":{},\"add_generation_prompt\":false}", CHAT},
    {"{\"add_special_tokens\":false}", TEXT},
    /* As pydantic takes them. */
    {"{\"temperature\":\"0.7\",\"top_k\":\"5\",\"max_tokens\":16.0,\"seed\":\" 3\"}", BOTH},
    {"{\"stream\":1,\"ignore_eos\":\"True\",\"n\":\"2\",\"timeout_s\":\"5\"}", BOTH},
    {"{\"logit_bias\":{\"1\":\"-5\"},\"allowed_token_ids\":[1.0,\"2\"]}", BOTH},
};

static const struct {
    const char *body;
    int formats;
    const char *param;
    int rc;
} refused[] = {
    {"{\"model\":\"other\"}", BOTH, "model", ERR_NO_MODEL},
    {"{\"model\":\"\"}", BOTH, "model", ERR_NO_MODEL},
    {"{\"model\":1}", BOTH, "model", ERR_INVALID},
    {"{\"temperature\":\"1x\"}", BOTH, "temperature", ERR_INVALID},
    {"{\"temperature\":true}", BOTH, "temperature", ERR_INVALID},
    {"{\"temperature\":-0.001}", BOTH, "temperature", ERR_INVALID},
    {"{\"temperature\":100.001}", BOTH, "temperature", ERR_INVALID},
    {"{\"temperature\":1e308}", BOTH, "temperature", ERR_INVALID},
    {"{\"top_p\":0}", BOTH, "top_p", ERR_INVALID},
    {"{\"top_p\":1.1}", BOTH, "top_p", ERR_INVALID},
    {"{\"top_p\":1e-60}", BOTH, "top_p", ERR_INVALID}, /* 0 as a float: the engine's bound */
    {"{\"repetition_penalty\":1e-60}", BOTH, "repetition_penalty", ERR_INVALID},
    {"{\"top_k\":-2}", BOTH, "top_k", ERR_INVALID},
    {"{\"top_k\":1.5}", BOTH, "top_k", ERR_INVALID},
    {"{\"top_k\":2147483648}", BOTH, "top_k", ERR_INVALID},
    {"{\"top_k\":18446744073709551615}", BOTH, "top_k", ERR_INVALID},
    {"{\"min_p\":-1}", BOTH, "min_p", ERR_INVALID},
    {"{\"presence_penalty\":2.5}", BOTH, "presence_penalty", ERR_INVALID},
    {"{\"frequency_penalty\":[]}", BOTH, "frequency_penalty", ERR_INVALID},
    {"{\"repetition_penalty\":0}", BOTH, "repetition_penalty", ERR_INVALID},
    {"{\"max_tokens\":0}", BOTH, "max_tokens", ERR_INVALID},
    {"{\"max_tokens\":-5}", BOTH, "max_tokens", ERR_INVALID},
    {"{\"max_tokens\":4294967297}", BOTH, "max_tokens", ERR_INVALID},
    {"{\"max_tokens\":1.5}", BOTH, "max_tokens", ERR_INVALID},
    {"{\"max_tokens\":\"1.5\"}", BOTH, "max_tokens", ERR_INVALID},
    {"{\"max_completion_tokens\":0}", CHAT, "max_completion_tokens", ERR_INVALID},
    {"{\"max_completion_tokens\":5,\"max_tokens\":\"x\"}", CHAT, "max_tokens", ERR_INVALID},
    {"{\"min_tokens\":-1}", BOTH, "min_tokens", ERR_INVALID},
    {"{\"priority\":2147483648}", BOTH, "priority", ERR_INVALID},
    {"{\"timeout_s\":0}", BOTH, "timeout_s", ERR_INVALID},
    {"{\"timeout_s\":-1}", BOTH, "timeout_s", ERR_INVALID},
    {"{\"timeout_s\":86401}", BOTH, "timeout_s", ERR_INVALID},
    {"{\"timeout_s\":\"5s\"}", BOTH, "timeout_s", ERR_INVALID},
    {"{\"seed\":1.5}", BOTH, "seed", ERR_INVALID},
    {"{\"seed\":\"one\"}", BOTH, "seed", ERR_INVALID},
    {"{\"stop\":\"\"}", BOTH, "stop", ERR_INVALID},
    {"{\"stop\":5}", BOTH, "stop", ERR_INVALID},
    {"{\"stop\":[null]}", BOTH, "stop", ERR_INVALID},
    {"{\"stop\":[[\"a\"]]}", BOTH, "stop", ERR_INVALID},
    {"{\"stop\":{}}", BOTH, "stop", ERR_INVALID},
    {"{\"stop_token_ids\":5}", BOTH, "stop_token_ids", ERR_INVALID},
    {"{\"stop_token_ids\":[-1]}", BOTH, "stop_token_ids", ERR_INVALID},
    {"{\"stop_token_ids\":[2147483648]}", BOTH, "stop_token_ids", ERR_INVALID},
    {"{\"stream\":2}", BOTH, "stream", ERR_INVALID},
    {"{\"stream\":\"maybe\"}", BOTH, "stream", ERR_INVALID},
    {"{\"stream_options\":true}", BOTH, "stream_options", ERR_INVALID},
    {"{\"stream_options\":{\"include_usage\":true}}", BOTH, "stream_options", ERR_INVALID},
    {"{\"stream\":true,\"stream_options\":{\"include_usage\":1}}", BOTH, "stream_options",
     ERR_UNSUPPORTED},
    {"{\"stream\":true,\"stream_options\":{\"else\":true}}", BOTH, "stream_options",
     ERR_UNSUPPORTED},
    {"{\"num_speculative_tokens\":-1}", BOTH, "num_speculative_tokens", ERR_INVALID},
    {"{\"num_speculative_tokens\":65}", BOTH, "num_speculative_tokens", ERR_INVALID},
    {"{\"num_speculative_tokens\":true}", BOTH, "num_speculative_tokens", ERR_INVALID},
    {"{\"ignore_eos\":0.5}", BOTH, "ignore_eos", ERR_INVALID},
    {"{\"skip_special_tokens\":\"\"}", BOTH, "skip_special_tokens", ERR_INVALID},
    {"{\"include_stop_str_in_output\":{}}", BOTH, "include_stop_str_in_output", ERR_INVALID},
    {"{\"add_generation_prompt\":3}", CHAT, "add_generation_prompt", ERR_INVALID},
    {"{\"continue_final_message\":\"a\"}", CHAT, "continue_final_message", ERR_INVALID},
    {"{\"chat_template_kwargs\":[]}", CHAT, "chat_template_kwargs", ERR_INVALID},
    {"{\"add_special_tokens\":\"\"}", TEXT, "add_special_tokens", ERR_INVALID},
    {"{\"logprob_token_ids\":[5]}", CHAT, "logprob_token_ids", ERR_INVALID},
    {"{\"logprobs\":true,\"logprob_token_ids\":[-1]}", CHAT, "logprob_token_ids", ERR_INVALID},
    {"{\"logprob_token_ids\":[\"a\"]}", BOTH, "logprob_token_ids", ERR_INVALID},
    {"{\"logprob_token_ids\":5}", BOTH, "logprob_token_ids", ERR_INVALID},
    {"{\"repetition_detection\":{\"max_pattern_size\":5}}", BOTH, "repetition_detection",
     ERR_UNSUPPORTED},
    {"{\"return_token_offsets\":true}", BOTH, "return_token_offsets", ERR_UNSUPPORTED},
    {"{\"return_prompt_text\":true}", CHAT, "return_prompt_text", ERR_UNSUPPORTED},
    {"{\"return_assistant_tokens_mask\":true}", CHAT, "return_assistant_tokens_mask",
     ERR_UNSUPPORTED},
    {"{\"truncation_side\":\"top\"}", BOTH, "truncation_side", ERR_INVALID},
    {"{\"truncation_side\":1}", BOTH, "truncation_side", ERR_INVALID},
    {"{\"reasoning_effort\":\"much\"}", CHAT, "reasoning_effort", ERR_INVALID},
    {"{\"reasoning_effort\":3}", CHAT, "reasoning_effort", ERR_INVALID},
    {"{\"tool_choice\":{\"type\":\"allowed_tools\"}," F "}", CHAT, "tool_choice", ERR_INVALID},
    {ALLOWED("{\"mode\":\"none\",\"tools\":[]}"), CHAT, "tool_choice", ERR_INVALID},
    {ALLOWED("{\"mode\":\"auto\"}"), CHAT, "tool_choice", ERR_INVALID},
    {ALLOWED("{\"mode\":\"auto\",\"tools\":[]}"), CHAT, "tool_choice", ERR_INVALID},
    {ALLOWED("{\"mode\":\"auto\",\"tools\":[{\"type\":\"function\"}]}"), CHAT, "tool_choice",
     ERR_INVALID},
    {ALLOWED(
         "{\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}"),
     CHAT, "tool_choice", ERR_INVALID},
    {"{\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":["
     "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}}}",
     CHAT, "tool_choice", ERR_INVALID},
    {"{\"n\":129}", BOTH, "n", ERR_INVALID},
    {"{\"n\":0}", BOTH, "n", ERR_INVALID},
    {"{\"n\":1.5}", BOTH, "n", ERR_INVALID},
    {"{\"n\":\"two\"}", BOTH, "n", ERR_INVALID},
    {"{\"n\":2,\"best_of\":3}", TEXT, "best_of", ERR_UNSUPPORTED},
    {"{\"echo\":-1}", TEXT, "echo", ERR_INVALID},
    {"{\"return_token_ids\":[]}", BOTH, "return_token_ids", ERR_INVALID},
    {"{\"cache_salt\":\"\"}", BOTH, "cache_salt", ERR_INVALID},
    {"{\"cache_salt\":5}", BOTH, "cache_salt", ERR_INVALID},
    {"{\"cache_retention\":5}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":101}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":-1}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":50.5}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":50,\"seconds\":0}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":50,\"seconds\":31536001}}", BOTH, "cache_retention",
     ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":50,\"tokens\":0}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"cache_retention\":{\"priority\":50,\"second\":1}}", BOTH, "cache_retention", ERR_INVALID},
    {"{\"messages\":[{\"content\":[{\"cache_control\":5}]}]}", CHAT, "messages", ERR_INVALID},
    {"{\"messages\":[{\"content\":[{\"cache_control\":{\"type\":\"eternal\"}}]}]}", CHAT,
     "messages", ERR_INVALID},
    {"{\"messages\":[{\"content\":[{\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"2h\"}}]}]}",
     CHAT, "messages", ERR_INVALID},
    {"{\"truncate_prompt_tokens\":0}", BOTH, "truncate_prompt_tokens", ERR_INVALID},
    {"{\"truncate_prompt_tokens\":-2}", BOTH, "truncate_prompt_tokens", ERR_INVALID},
    {"{\"truncate_prompt_tokens\":\"five\"}", BOTH, "truncate_prompt_tokens", ERR_INVALID},
    {"{\"documents\":{}}", CHAT, "documents", ERR_INVALID},
    {"{\"request_id\":5}", BOTH, "request_id", ERR_INVALID},
    {"{\"best_of\":2}", TEXT, "best_of", ERR_UNSUPPORTED},
    {"{\"logprobs\":5}", CHAT, "logprobs", ERR_INVALID},
    {"{\"logprobs\":true}", TEXT, "logprobs", ERR_INVALID},
    {"{\"logprobs\":21}", TEXT, "logprobs", ERR_INVALID},
    {"{\"top_logprobs\":2}", CHAT, "top_logprobs", ERR_INVALID},
    {"{\"prompt_logprobs\":-1}", BOTH, "prompt_logprobs", ERR_UNSUPPORTED},
    {"{\"prompt_logprobs\":-2}", BOTH, "prompt_logprobs", ERR_INVALID},
    {"{\"prompt_logprobs\":21}", BOTH, "prompt_logprobs", ERR_INVALID},
    {"{\"logprobs\":true,\"top_logprobs\":-1}", CHAT, "top_logprobs", ERR_UNSUPPORTED},
    {"{\"logprobs\":-1}", TEXT, "logprobs", ERR_UNSUPPORTED},
    {"{\"prompt_logprobs\":1,\"stream\":true}", BOTH, "prompt_logprobs", ERR_INVALID},
    {"{\"max_tokens\":0}", BOTH, "max_tokens", ERR_INVALID},
    {"{\"logit_bias\":{\"a\":1}}", BOTH, "logit_bias", ERR_INVALID},
    {"{\"logit_bias\":{\"1\":\"x\"}}", BOTH, "logit_bias", ERR_INVALID},
    {"{\"echo\":-1}", CHAT, "echo", ERR_INVALID},
    {"{\"suffix\":\"a\"}", TEXT, "suffix", ERR_UNSUPPORTED},
    {"{\"tools\":[{}]}", CHAT, "tools", ERR_INVALID},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{}}]}", CHAT, "tools", ERR_INVALID},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}", CHAT, "tools",
     ERR_INVALID},
    {"{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":5}}]}", CHAT,
     "tools", ERR_INVALID},
    {"{\"tools\":{}}", CHAT, "tools", ERR_INVALID},
    {"{\"tool_choice\":\"required\"}", CHAT, "tool_choice", ERR_INVALID},
    {"{\"tool_choice\":\"required\",\"tools\":[]}", CHAT, "tool_choice", ERR_INVALID},
    {"{\"tool_choice\":{\"type\":\"function\"}}", CHAT, "tool_choice", ERR_INVALID},
    {"{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}},\"tools\":[{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\"}}]}",
     CHAT, "tool_choice", ERR_INVALID},
    {"{\"tool_choice\":\"any\"}", CHAT, "tool_choice", ERR_INVALID},
    {"{\"tool_choice\":5}", CHAT, "tool_choice", ERR_INVALID},
    {"{\"parallel_tool_calls\":7}", CHAT, "parallel_tool_calls", ERR_INVALID},
    {"{\"bad_words\":\"a\"}", BOTH, "bad_words", ERR_INVALID},
    {"{\"allowed_token_ids\":[]}", BOTH, "allowed_token_ids", ERR_INVALID},
    {"{\"allowed_token_ids\":[\"a\"]}", BOTH, "allowed_token_ids", ERR_INVALID},
    {"{\"response_format\":\"json_object\"}", BOTH, "response_format", ERR_INVALID},
    {"{\"response_format\":{}}", BOTH, "response_format", ERR_INVALID},
    {"{\"response_format\":{\"type\":\"xml\"}}", BOTH, "response_format", ERR_INVALID},
    {"{\"structured_outputs\":{\"structural_tag\":5}}", BOTH, "structured_outputs", ERR_INVALID},
    {"{\"response_format\":{\"type\":\"json_schema\"}}", BOTH, "response_format", ERR_INVALID},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}}", BOTH,
     "response_format", ERR_INVALID},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a b\",\"schema"
     "\":{}}"
     "}}",
     BOTH, "response_format", ERR_INVALID},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}}", BOTH,
     "response_format", ERR_INVALID},
    {"{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\",\"schema\":{},"
     "\"strict\":1}}}",
     BOTH, "response_format", ERR_INVALID},
    {"{\"structured_outputs\":5}", BOTH, "structured_outputs", ERR_INVALID},
    {"{\"structured_outputs\":{\"json\":5}}", BOTH, "structured_outputs", ERR_INVALID},
    {"{\"structured_outputs\":{\"regex\":{}}}", BOTH, "structured_outputs", ERR_INVALID},
    {"{\"structured_outputs\":{\"choice\":[]}}", BOTH, "structured_outputs", ERR_INVALID},
    {"{\"structured_outputs\":{\"choice\":[1]}}", BOTH, "structured_outputs", ERR_INVALID},
    {"{\"structured_outputs\":{\"json\":{},\"regex\":\"a\"}}", BOTH, "structured_outputs",
     ERR_INVALID},
    {"{\"structured_outputs\":{\"json\":{},\"json_object\":true}}", BOTH, "structured_outputs",
     ERR_INVALID},
    {"{\"structured_outputs\":{\"whitespace_pattern\":5}}", BOTH, "structured_outputs",
     ERR_INVALID},
    {"{\"structured_outputs\":{\"whitespace_pattern\":\" \",\"disable_any_whitespace\":true}}",
     BOTH, "structured_outputs", ERR_INVALID},
    {"{\"guided_whitespace_pattern\":[]}", BOTH, "guided_whitespace_pattern", ERR_INVALID},
    {"{\"guided_choice\":\"a\"}", BOTH, "guided_choice", ERR_INVALID},
    {"{\"guided_json\":[]}", BOTH, "guided_json", ERR_INVALID},
    {"{\"guided_json\":{\"type\":\"null\"},\"structured_outputs\":{\"json\":"
     "{\"type\":\"string\"}}}",
     BOTH, "structured_outputs", ERR_INVALID},
    {"{\"guided_regex\":\"a\",\"guided_grammar\":\"root ::= \\\"a\\\"\"}", BOTH, "guided_grammar",
     ERR_INVALID},
    {"{\"response_format\":{\"type\":\"json_object\"},\"structured_outputs\":{\"json\":{}}}", BOTH,
     "structured_outputs", ERR_INVALID},
    {"{\"functions\":[{}]}", CHAT, "functions", ERR_UNSUPPORTED},
    {"{\"chat_template\":\"x\"}", CHAT, "chat_template", ERR_UNSUPPORTED},
    {"{\"prompt_embeds\":\"x\"}", TEXT, "prompt_embeds", ERR_UNSUPPORTED},
    {"{\"modalities\":[\"audio\"]}", CHAT, "modalities", ERR_UNSUPPORTED},
    {"{\"store\":{}}", CHAT, "store", ERR_INVALID},
    {"{\"use_beam_search\":true,\"stream\":true}", BOTH, "stream", ERR_UNSUPPORTED},
    {"{\"use_beam_search\":true,\"stop\":\"x\"}", BOTH, "stop", ERR_UNSUPPORTED},
    {"{\"use_beam_search\":true,\"n\":65}", BOTH, "n", ERR_INVALID},
    {"{\"use_beam_search\":true,\"guided_regex\":\"a+\"}", BOTH, "use_beam_search",
     ERR_UNSUPPORTED},
    {"{\"use_beam_search\":1.5}", BOTH, "use_beam_search", ERR_INVALID},
    {"{\"length_penalty\":\"long\"}", BOTH, "length_penalty", ERR_INVALID},
};

static const struct names names = {.at = {"demo"}, .n = 1};

/* Read a body; everything in it lives in the arena. */
static int read_body(const char *text, enum exchange_format format, struct arena *arena,
                     struct fields *out, struct exchange *x, const char **param)
{
    const struct json *body = NULL;
    struct reason reason = {.text = ""};

    *x = (struct exchange){.format = format};
    must_ok(json_parse(&body, arena, text, strlen(text), reason.text, sizeof reason.text));
    struct defaults defaults;

    defaults_init(&defaults);
    int rc = fields_read(out, x, body, &defaults, &names, &reason);
    *param = reason.param;
    if (rc != ERR_OK)
        ok(reason.text[0] != '\0' && strstr(reason.text, "not string") == NULL,
           "it says why: %.80s", reason.text);
    return rc;
}

static void test_tables(struct arena *arena)
{
    struct exchange x;
    struct fields f;
    const char *param;

    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        for (int format = 0; format < 2; format++) {
            if ((taken[i].formats & (format == EXCHANGE_CHAT ? CHAT : TEXT)) == 0)
                continue;
            param = "unset";
            is_int(read_body(taken[i].body, (enum exchange_format)format, arena, &f, &x, &param),
                   ERR_OK, "taken: %s", taken[i].body);
            ok(param == NULL, "no field is blamed");
            arena_reset(&x.arena);
        }
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        for (int format = 0; format < 2; format++) {
            if ((refused[i].formats & (format == EXCHANGE_CHAT ? CHAT : TEXT)) == 0)
                continue;
            is_int(read_body(refused[i].body, (enum exchange_format)format, arena, &f, &x, &param),
                   refused[i].rc, "refused: %.80s", refused[i].body);
            is_text(param, refused[i].param, "by its name");
            arena_reset(&x.arena);
        }
    }
}

static void test_values(struct arena *arena)
{
    struct exchange x;
    struct fields f;
    const char *param;

    must_ok(read_body("{}", EXCHANGE_CHAT, arena, &f, &x, &param));
    ok(f.request.generate.sampling.temperature == 1.0f &&
           f.request.generate.sampling.top_p == 1.0f &&
           f.request.generate.sampling.repetition_penalty == 1.0f,
       "defaults of sampling");
    ok(f.skip_special && !f.include_stop && !f.seed_given && !x.stream && !x.max_tokens_given,
       "defaults of the rest");
    must_ok(
        read_body("{\"temperature\":0.5,\"top_p\":0.25,\"top_k\":7,\"min_p\":0.125,"
                  "\"presence_penalty\":1,\"frequency_penalty\":-1,\"repetition_penalty\":1.5,"
                  "\"min_tokens\":3,\"max_tokens\":9,\"priority\":-4,\"timeout_s\":2.5,\"seed\":-2,"
                  "\"ignore_eos\":true,\"stream\":true,\"skip_special_tokens\":false,"
                  "\"stream_options\":{\"include_usage\":true},\"stop\":[\"ab\",\"c\"],"
                  "\"include_stop_str_in_output\":true,\"stop_token_ids\":[5,6]}",
                  EXCHANGE_CHAT, arena, &f, &x, &param));
    ok(f.request.generate.sampling.temperature == 0.5f &&
           f.request.generate.sampling.top_p == 0.25f &&
           f.request.generate.sampling.min_p == 0.125f,
       "temperature, top_p, min_p");
    ok(f.request.generate.sampling.presence_penalty == 1.0f &&
           f.request.generate.sampling.frequency_penalty == -1.0f &&
           f.request.generate.sampling.repetition_penalty == 1.5f,
       "penalties");
    ok(f.request.generate.sampling.top_k == 7 && f.request.generate.min_tokens == 3 &&
           f.request.priority == -4,
       "top_k, min_tokens, priority");
    ok(x.timeout_us == 2500001, "timeout_s");
    ok(f.seed_given && f.request.generate.sampling.seed == UINT64_MAX - 1, "seed");
    ok(x.max_tokens_given && x.max_tokens == 9, "max_tokens");
    ok((f.request.flags & WIRE_IGNORE_EOS) != 0 && !f.skip_special && f.include_stop, "flags");
    ok(x.stream && x.include_usage, "stream");
    ok(f.n_stops == 2 && x.n_stops == 2 && f.stops[1].len == 1, "stop strings");
    is_text(x.stop_texts[0].text, "ab", "the first of them");
    ok(x.token_rules.n_stop_ids == 2 && x.token_rules.stop_ids[1] == 6, "stop ids");
    arena_reset(&x.arena);
    must_ok(read_body("{\"top_k\":-1}", EXCHANGE_COMPLETION, arena, &f, &x, &param));
    is_int(f.request.generate.sampling.top_k, 0, "top_k -1 is off");
    must_ok(read_body("{\"max_completion_tokens\":3,\"max_tokens\":9}", EXCHANGE_CHAT, arena, &f,
                      &x, &param));
    is_int(x.max_tokens, 3, "max_completion_tokens wins when it comes first");
    must_ok(read_body("{\"max_tokens\":9,\"max_completion_tokens\":3}", EXCHANGE_CHAT, arena, &f,
                      &x, &param));
    is_int(x.max_tokens, 3, "and when it comes last");
    is_int(x.n, 1, "one choice unless more are asked for");
    must_ok(read_body("{\"n\":4,\"echo\":true,\"return_token_ids\":true,\"cache_salt\":\"a\","
                      "\"truncate_prompt_tokens\":7,\"request_id\":\"ab-1\",\"stream\":true,"
                      "\"stream_options\":{\"continuous_usage_stats\":true}}",
                      EXCHANGE_COMPLETION, arena, &f, &x, &param));
    ok(x.n == 4 && x.echo && x.return_ids && x.truncate_to == 7 && x.usage_always, "the answer");
    is_text(x.request_id, "ab-1", "the request's name");
    ok(f.request.salt[0] != 0 || f.request.salt[1] != 0, "the salt");
    must_ok(read_body("{\"cache_retention\":{\"priority\":70,\"seconds\":9,\"tokens\":32}}",
                      EXCHANGE_COMPLETION, arena, &f, &x, &param));
    ok(f.request.generate.retain == 71 && f.request.generate.retain_s == 9 &&
           f.request.generate.retain_tokens == 32,
       "how long the prompt is to stay");
    must_ok(read_body("{\"messages\":[{\"content\":[{\"cache_control\":{\"type\":\"ephemeral\","
                      "\"ttl\":\"1h\"}},{\"cache_control\":{\"type\":\"ephemeral\"}}]}]}",
                      EXCHANGE_CHAT, arena, &f, &x, &param));
    ok(f.request.generate.retain == 61 && f.request.generate.retain_s == 3600,
       "the longest of marks");
    must_ok(
        read_body("{\"messages\":[{\"content\":[{\"cache_control\":{\"type\":\"ephemeral\"}}]}],"
                  "\"cache_retention\":{\"priority\":5}}",
                  EXCHANGE_CHAT, arena, &f, &x, &param));
    ok(f.request.generate.retain == 6 && f.request.generate.retain_s == 0,
       "which count less than the field");
    retention_limit(&f.request.generate, 3);
    is_int(f.request.generate.retain, 4, "a client may say no more than it may");
    retention_limit(&f.request.generate, 0);
    is_int(f.request.generate.retain, 0, "or nothing");
    must_ok(read_body("{\"request_id\":\"a b\"}", EXCHANGE_CHAT, arena, &f, &x, &param));
    is_text(x.request_id, "", "not every text is a name");
}

/* The bounds are the server's: those of its settings. */
static void test_bounds(struct arena *arena)
{
    static const char *const names_of[] = {"prompt_logprobs", "logprobs"};
    struct exchange x;
    struct fields f;
    struct reason reason = {.text = ""};
    char text[64];

    for (int i = 0; i < 6; i++) {
        uint32_t bound = i < 2 ? 0 : i < 4 ? 20 : WIRE_LOGPROBS_MAX, n = bound + (uint32_t)i % 2;
        struct defaults defaults;
        const struct json *body;

        defaults_init(&defaults);
        defaults.max_logprobs = (int)bound;
        for (size_t k = 0; k < 2; k++) {
            (void)snprintf(text, sizeof text, "{\"%s\":%u}", names_of[k], n);
            x = (struct exchange){.format = EXCHANGE_COMPLETION};
            must_ok(json_parse(&body, arena, text, strlen(text), reason.text, sizeof reason.text));
            is_int(fields_read(&f, &x, body, &defaults, &names, &reason),
                   n == bound ? ERR_OK : ERR_INVALID, "%s, at most %u", text, bound);
            arena_reset(&x.arena);
        }
    }
}

/* -1 is the whole vocabulary, where the setting lets more through than are told one by one. */
static void test_whole_vocabulary(struct arena *arena)
{
    static const struct {
        int most, rc;
    } rows[] = {{-1, ERR_OK},
                {WIRE_LOGPROBS_MAX + 1, ERR_OK},
                {WIRE_LOGPROBS_MAX, ERR_UNSUPPORTED},
                {0, ERR_UNSUPPORTED}};
    static const char text[] = "{\"prompt_logprobs\":-1,\"logprobs\":-1}";
    struct exchange x;
    struct fields f;
    struct reason reason = {.text = ""};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct defaults defaults;
        const struct json *body;
        int rc;

        defaults_init(&defaults);
        defaults.max_logprobs = rows[i].most;
        x = (struct exchange){.format = EXCHANGE_COMPLETION};
        must_ok(json_parse(&body, arena, text, strlen(text), reason.text, sizeof reason.text));
        rc = fields_read(&f, &x, body, &defaults, &names, &reason);
        is_int(rc, rows[i].rc, "-1, where max_logprobs is %d", rows[i].most);
        ok(rc != ERR_OK || (f.request.generate.n_logprobs == UINT32_MAX &&
                            f.request.generate.n_prompt_logprobs == UINT32_MAX),
           "as the number above all others");
        arena_reset(&x.arena);
    }
}

/* One more than fits of stop strings, and one byte more. */
static void test_stop_limits(struct arena *arena)
{
    struct exchange x;
    struct fields f;
    const char *param;
    struct buf b = {0};

    for (int extra = 0; extra < 2; extra++) {
        buf_clear(&b);
        buf_add_text(&b, "{\"stop\":[");
        for (int i = 0; i < 32 + extra; i++) /* the default of max_stop_strings */
            buf_printf(&b, "%s\"s%d\"", i == 0 ? "" : ",", i);
        buf_add_text(&b, "]}");
        is_int(read_body(b.bytes, EXCHANGE_CHAT, arena, &f, &x, &param),
               extra == 0 ? ERR_OK : ERR_INVALID, "%d stop strings", 32 + extra);
        arena_reset(&x.arena);
        buf_clear(&b);
        buf_add_text(&b, "{\"stop\":\"");
        for (int i = 0; i < DETOK_STOP_BYTES_MAX + extra; i++)
            buf_add_byte(&b, 'a');
        buf_add_text(&b, "\"}");
        is_int(read_body(b.bytes, EXCHANGE_CHAT, arena, &f, &x, &param),
               extra == 0 ? ERR_OK : ERR_INVALID, "a stop string of %d bytes",
               DETOK_STOP_BYTES_MAX + extra);
        arena_reset(&x.arena);
    }
    buf_fini(&b);
}

/* Each variable is looked for among all, so there may not be any number of them. */
static void test_variables(struct arena *arena)
{
    struct exchange x;
    struct fields f;
    const char *param;
    struct buf b = {0};

    for (int n = 256; n < 258; n++) {
        buf_clear(&b);
        buf_add_text(&b, "{\"chat_template_kwargs\":{");
        for (int i = 0; i < n; i++)
            buf_printf(&b, "%s\"v%d\":%d", i == 0 ? "" : ",", i, i);
        buf_add_text(&b, "}}");
        is_int(read_body(b.bytes, EXCHANGE_CHAT, arena, &f, &x, &param),
               n == 256 ? ERR_OK : ERR_INVALID, "%d template variables", n);
    }
    is_text(param, "chat_template_kwargs", "by its name");
    buf_fini(&b);
}

/* A reason names the field, what came, and what may come. */
static void test_reasons(struct arena *arena)
{
    static const struct {
        const char *body;
        const char *says[3];
    } rows[] = {
        {"{\"temperature\":200}", {"'temperature'", "at least 0 and at most 100", "not 200"}},
        {"{\"temperature\":\"hot\"}", {"'temperature'", "a number", "not \"hot\""}},
        {"{\"max_tokens\":2.5}", {"'max_tokens'", "a whole number from", "not 2.5"}},
        {"{\"top_p\":0}", {"'top_p'", "above 0 and at most 1", "not 0"}},
        {"{\"n\":1000}", {"'n'", "at most 128", "not 1000"}},
        {"{\"seed\":[]}", {"'seed'", "a whole number of 64 bits", "not list"}},
        {"{\"stream\":\"perhaps\"}", {"'stream'", "true or false", "not \"perhaps\""}},
        {"{\"logit_bias\":{\"a\":1}}", {"'logit_bias'", "\"a\"", "not a token id"}},
        {"{\"logit_bias\":{\"17\":\"b\"}}", {"'logit_bias'", "from -100 to 100", "17 has \"b\""}},
        {"{\"logit_bias\":[]}", {"'logit_bias'", "an object", "not list"}},
        {"{\"logit_bias\":{\"7\":1,\"07\":1}}", {"'logit_bias'", "token id 7", "twice"}},
        {"{\"allowed_token_ids\":[\"x\"]}", {"'allowed_token_ids'", "token ids", "not \"x\""}},
        {"{\"truncate_prompt_tokens\":-2}", {"'truncate_prompt_tokens'", "from 1 to", "not -2"}},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct json *body = NULL;
        struct exchange x = {.format = EXCHANGE_CHAT};
        struct defaults defaults;
        struct fields f;
        struct reason reason = {.text = ""};

        defaults_init(&defaults);
        must_ok(json_parse(&body, arena, rows[i].body, strlen(rows[i].body), reason.text,
                           sizeof reason.text));
        ok(fields_read(&f, &x, body, &defaults, &names, &reason) == ERR_INVALID, "refused: %s",
           rows[i].body);
        for (int k = 0; k < 3; k++)
            ok(strstr(reason.text, rows[i].says[k]) != NULL, "%s is in: %s", rows[i].says[k],
               reason.text);
        arena_reset(&x.arena);
    }
}

int main(void)
{
    struct arena arena = {.limit_bytes = (size_t)16 << 20};

    test_tables(&arena);
    test_values(&arena);
    test_stop_limits(&arena);
    test_bounds(&arena);
    test_whole_vocabulary(&arena);
    test_variables(&arena);
    test_reasons(&arena);
    arena_reset(&arena);
    return tap_done();
}
