/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: requests of Anthropic's API and for responses become the chat that they mean, or are
 * refused by the field's name. Method: tables of bodies with the chat's body as text, and of
 * refusals. */
#include "front/request/translate.h"

#include "tests/tap.h"

enum { MESSAGES, RESPONSES };

#define USER     "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define ASK      "\"max_tokens\":5," USER
#define MARK(s)  "\"cache_retention\":{\"priority\":60,\"seconds\":" s "}"
#define SAID     USER "}"
#define MSG(m)   "{\"max_tokens\":5,\"messages\":[" m "]}"
#define GOT(m)   "{\"max_tokens\":5,\"messages\":[" m "]}"
#define INPUT(i) "{\"input\":[" i "]}"
#define TALK(m)  "{\"messages\":[" m "]}"
#define CALL     "{\"id\":\"i\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"

static const struct {
    int api;
    const char *body;
    const char *chat;
} meant[] = {
    {MESSAGES, "{" ASK "}", "{\"max_tokens\":5," SAID},
    {MESSAGES,
     "{\"stop_sequences\":[\"x\"],\"model\":\"m\",\"stream\":true,\"temperature\":0.5,\"top_p\":1,"
     "\"top_k\":3," ASK "}",
     "{\"stop\":[\"x\"],\"model\":\"m\",\"stream\":true,\"temperature\":0.5,\"top_p\":1,"
     "\"top_k\":3,\"max_tokens\":5," SAID},
    /* The system comes first, wherever its field stands. */
    {MESSAGES, "{" ASK ",\"system\":\"s\"}",
     GOT("{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}")},
    {MESSAGES,
     "{" ASK ",\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{}},"
     "{\"type\":\"text\",\"text\":\"t\"}]}",
     GOT("{\"role\":\"system\",\"content\":\"s\\nt\"},{\"role\":\"user\",\"content\":\"a\"}")},
    /* Marks are said of the prompt as a whole, the longest of them; the client's own word wins. */
    {MESSAGES,
     "{" ASK ",\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{\"type\":"
     "\"ephemeral\"}}]}",
     "{\"max_tokens\":5," MARK(
         "300") ",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":"
                "\"user\",\"content\":\"a\"}]}"},
    {MESSAGES,
     "{\"max_tokens\":5,\"cache_control\":{\"type\":\"ephemeral\"},"
     "\"messages\":[{\"role\":\"user\","
     "\"content\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\","
     "\"ttl\":\"1h\"}}]}]}",
     "{\"max_tokens\":5," MARK("3600") "," SAID},
    {MESSAGES,
     "{" ASK ",\"cache_retention\":{\"priority\":1},\"cache_control\":{\"type\":\"ephemeral\"}}",
     "{\"max_tokens\":5,\"cache_retention\":{\"priority\":1}," SAID},
    {RESPONSES, "{\"input\":\"a\",\"cache_retention\":{\"priority\":1}}",
     "{\"cache_retention\":{\"priority\":1}," SAID},
    {MESSAGES, "{" ASK ",\"system\":[]}", GOT("{\"role\":\"user\",\"content\":\"a\"}")},
    /* One role in a row is one message. */
    {MESSAGES,
     MSG("{\"role\":\"user\",\"content\":\"a\"},"
         "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"}]}"),
     GOT("{\"role\":\"user\",\"content\":\"a\\nb\"}")},
    /* Thinking, a call, its result among what the user says. */
    {MESSAGES,
     MSG("{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":["
         "{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"x\"},"
         "{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"text\",\"text\":\"b\"},"
         "{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{\"k\":1.0}}]},"
         "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\","
         "\"content\":[{\"type\":\"text\",\"text\":\"r\"}],\"is_error\":false},"
         "{\"type\":\"text\",\"text\":\"c\"}]}"),
     GOT("{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\","
         "\"reasoning_content\":\"hm\",\"tool_calls\":[" CALL "{\"k\":1.0}}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"r\"},"
         "{\"role\":\"user\",\"content\":\"c\"}")},
    {MESSAGES,
     MSG("{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\","
         "\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
         "\"tool_use_id\":\"i\"},{\"type\":\"tool_result\",\"tool_use_id\":\"j\","
         "\"content\":\"s\"}]}"),
     GOT("{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[" CALL "{}}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"\"},"
         "{\"role\":\"tool\",\"tool_call_id\":\"j\",\"content\":\"s\"}")},
    /* What the assistant has begun goes on. */
    {MESSAGES,
     MSG("{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}"),
     "{\"max_tokens\":5,\"continue_final_message\":true,\"messages\":["
     "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[]}"),
     GOT("{\"role\":\"user\",\"content\":\"a\"}")},
    {MESSAGES,
     "{\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"},"
     "\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"custom\",\"name\":\"g\","
     "\"input_schema\":{},\"strict\":true}],\"tool_choice\":{\"type\":\"any\","
     "\"disable_parallel_tool_use\":true}," ASK "}",
     "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
     "\"parameters\":{\"type\":\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"g\","
     "\"parameters\":{},\"strict\":true}}],\"parallel_tool_calls\":false,"
     "\"tool_choice\":\"required\",\"max_tokens\":5," MARK("300") "," SAID},
    {MESSAGES, "{\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\"}," ASK "}",
     "{\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},"
     "\"max_tokens\":5," SAID},
    {MESSAGES, "{\"tool_choice\":{\"type\":\"auto\"}," ASK "}",
     "{\"tool_choice\":\"auto\",\"max_tokens\":5," SAID},
    {MESSAGES, "{\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":1024}," ASK "}",
     "{\"max_tokens\":5," USER
     ",\"chat_template_kwargs\":{\"enable_thinking\":true,\"thinking\":true}}"},
    /* The client's own variables win, wherever they stand. */
    {MESSAGES,
     "{\"thinking\":{\"type\":\"disabled\"},\"chat_template_kwargs\":{\"thinking\":5}," ASK "}",
     "{\"max_tokens\":5," USER
     ",\"chat_template_kwargs\":{\"thinking\":5,\"enable_thinking\":false}}"},
    {MESSAGES,
     "{\"output_config\":{\"effort\":\"low\",\"format\":{\"type\":\"json_schema\","
     "\"schema\":{\"a\":1}}}," ASK "}",
     "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\","
     "\"schema\":{\"a\":1}}},\"max_tokens\":5," USER
     ",\"chat_template_kwargs\":{\"reasoning_effort\":\"low\"}}"},
    {MESSAGES,
     "{\"metadata\":{\"user_id\":\"u\"},\"service_tier\":\"auto\",\"colour\":1,\"system\":null,"
     "\"tools\":null,\"seed\":7,\"container\":null,\"mcp_servers\":[]," ASK "}",
     "{\"seed\":7,\"max_tokens\":5," SAID},

    {RESPONSES, "{\"input\":\"a\"}", "{" SAID},
    {RESPONSES, "{\"input\":\"a\",\"instructions\":\"s\",\"max_output_tokens\":9}",
     "{\"max_completion_tokens\":9,\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
     "{\"role\":\"user\",\"content\":\"a\"}]}"},
    {RESPONSES,
     INPUT("{\"role\":\"developer\",\"content\":\"s\"},{\"type\":\"message\",\"role\":\"user\","
           "\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},"
           "{\"type\":\"message\",\"role\":\"assistant\",\"id\":\"x\",\"status\":\"completed\","
           "\"content\":[{\"type\":\"output_text\",\"text\":\"b\",\"annotations\":[]}]}"),
     TALK("{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
          "{\"role\":\"assistant\",\"content\":\"b\"}")},
    {RESPONSES,
     INPUT("{\"type\":\"reasoning\",\"id\":\"r\",\"summary\":[],\"content\":["
           "{\"type\":\"reasoning_text\",\"text\":\"h\"},{\"type\":\"reasoning_text\","
           "\"text\":\"m\"}]},{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":\"f\","
           "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"i\","
           "\"output\":\"r\"},{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\","
           "\"text\":\"s\"}]},{\"role\":\"assistant\",\"content\":\"b\"}"),
     TALK("{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"hm\","
          "\"tool_calls\":[" CALL "\"{}\"}}]},"
          "{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"r\"},"
          "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"s\"}")},
    /* Reasoning behind what was said begins another message. */
    {RESPONSES,
     INPUT("{\"role\":\"assistant\",\"content\":\"b\"},{\"type\":\"reasoning\",\"summary\":["
           "{\"type\":\"summary_text\",\"text\":\"s\"}]},{\"type\":\"function_call\","
           "\"call_id\":\"i\",\"name\":\"f\",\"arguments\":\"{}\"}"),
     TALK("{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"assistant\",\"content\":null,"
          "\"reasoning_content\":\"s\",\"tool_calls\":[" CALL "\"{}\"}}]}")},
    {RESPONSES,
     "{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"d\","
     "\"parameters\":{\"type\":\"object\"},\"strict\":true}],\"tool_choice\":{\"type\":"
     "\"function\",\"name\":\"f\"},\"parallel_tool_calls\":false}",
     "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
     "\"parameters\":{\"type\":\"object\"},\"strict\":true}}],\"tool_choice\":{\"type\":"
     "\"function\",\"function\":{\"name\":\"f\"}},\"parallel_tool_calls\":false," SAID},
    {RESPONSES,
     "{\"input\":\"a\",\"text\":{\"verbosity\":\"low\",\"format\":{\"type\":\"json_schema\","
     "\"name\":\"n\",\"schema\":{\"b\":2},\"strict\":true}}}",
     "{\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"schema\":"
     "{\"b\":2},\"strict\":true}}," SAID},
    {RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_object\"}}}",
     "{\"response_format\":{\"type\":\"json_object\"}," SAID},
    {RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"text\"}}}", "{" SAID},
    {RESPONSES, "{\"input\":\"a\",\"reasoning\":{\"effort\":\"high\",\"summary\":\"auto\"}}",
     "{\"reasoning_effort\":\"high\"," USER "}"},
    {RESPONSES,
     "{\"input\":\"a\",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":["
     "{\"type\":\"function\",\"name\":\"f\"}]}}",
     "{\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":["
     "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}}," USER "}"},
    {RESPONSES,
     "{\"input\":\"a\",\"store\":true,\"metadata\":{\"k\":\"v\"},\"background\":false,"
     "\"previous_response_id\":null,\"truncation\":\"disabled\",\"include\":["
     "\"reasoning.encrypted_content\"],\"top_logprobs\":0,\"user\":\"u\",\"colour\":1}",
     "{" SAID},
    {RESPONSES, "{\"input\":\"a\",\"top_logprobs\":3}", "{" SAID},
    {RESPONSES,
     "{\"top_logprobs\":3,\"input\":\"a\",\"include\":[\"message.output_text.logprobs\"]}",
     "{\"logprobs\":true,\"top_logprobs\":3," USER "}"},
    /* Codex: tools of a namespace, of another's service, and such as take a text. */
    {RESPONSES,
     "{\"tools\":[{\"type\":\"namespace\",\"name\":\"mcp\",\"description\":\"n\",\"tools\":[{"
     "\"type\":\"function\",\"name\":\"f\",\"parameters\":{}}]},{\"type\":\"web_search\"},{"
     "\"type\":\"custom\",\"name\":\"g\",\"description\":\"d\"}],\"truncation\":\"auto\","
     "\"input\":\"a\"}",
     "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"mcp__f\",\"parameters\":{}}},"
     "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"description\":\"d\",\"parameters\":{"
     "\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":["
     "\"input\"],\"additionalProperties\":false}}}],\"truncate_prompt_tokens\":-1," SAID},
    {RESPONSES, "{\"tools\":[{\"type\":\"web_search\"}],\"input\":\"a\"}", "{" SAID},
    {RESPONSES,
     "{\"tools\":[{\"type\":\"custom\",\"name\":\"g\",\"description\":\"d\",\"format\":{\"type\":"
     "\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: X\"}}],\"tool_choice\":{\"type\":"
     "\"custom\",\"name\":\"g\"},\"input\":\"a\"}",
     "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\",\"description\":\"d\\n\\nThe "
     "input is a text under this lark grammar:\\nstart: X\",\"parameters\":{\"type\":\"object\","
     "\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],"
     "\"additionalProperties\":false}}}],\"tool_choice\":{\"type\":\"function\",\"function\":{"
     "\"name\":\"g\"}}," SAID},
    {RESPONSES,
     INPUT("{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"function_call\",\"call_id\":\"i\","
           "\"name\":\"f\",\"namespace\":\"mcp\",\"arguments\":\"{}\"},{\"type\":"
           "\"custom_tool_call\",\"call_id\":\"j\",\"name\":\"g\",\"input\":\"x \\\"y\"},{"
           "\"type\":\"function_call_output\",\"call_id\":\"i\",\"output\":\"r\"},{\"type\":"
           "\"custom_tool_call_output\",\"call_id\":\"j\",\"output\":[{\"type\":\"input_text\","
           "\"text\":\"s\"}]}"),
     TALK("{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,"
          "\"tool_calls\":[{\"id\":\"i\",\"type\":\"function\",\"function\":{\"name\":\"mcp__f\","
          "\"arguments\":\"{}\"}},{\"id\":\"j\",\"type\":\"function\",\"function\":{\"name\":\"g\","
          "\"arguments\":{\"input\":\"x \\\"y\"}}}]},{\"role\":\"tool\",\"tool_call_id\":\"i\","
          "\"content\":\"r\"},{\"role\":\"tool\",\"tool_call_id\":\"j\",\"content\":\"s\"}")},
    /* Claude Code: what is for a service's books, and tools that it has looked up. */
    {MESSAGES,
     "{" ASK ",\"system\":[{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cc_version=2; "
     "cch=1;\"},{\"type\":\"text\",\"text\":\"s\"}]}",
     GOT("{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"}")},
    {MESSAGES,
     MSG("{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\","
         "\"content\":[{\"type\":\"tool_reference\",\"tool_name\":\"f\"}]}]}"),
     GOT("{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"f\"}")},
};

static const struct {
    int api;
    const char *body;
    const char *param;
    int rc;
    const char *word; /* in the sentence */
} refused[] = {
    {MESSAGES, "{}", "max_tokens", ERR_INVALID, "required"},
    {MESSAGES, "{" ASK ",\"cache_control\":{\"type\":\"eternal\"}}", "cache_control", ERR_INVALID,
     "ephemeral"},
    {MESSAGES, "{" ASK ",\"cache_control\":5}", "cache_control", ERR_INVALID, "object"},
    {MESSAGES,
     "{" ASK ",\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{\"type\":"
     "\"ephemeral\",\"ttl\":\"1d\"}}]}",
     "system", ERR_INVALID, "5m or 1h"},
    {MESSAGES, "{\"max_tokens\":5}", "messages", ERR_INVALID, "required"},
    {MESSAGES, "{\"max_tokens\":0}", "max_tokens", ERR_INVALID, "from 1 on"},
    {MESSAGES, "{\"max_tokens\":\"5\"}", "max_tokens", ERR_INVALID, "not string"},
    {MESSAGES, "{\"max_tokens\":5,\"messages\":{}}", "messages", ERR_INVALID, "not object"},
    {MESSAGES, "{\"max_tokens\":5,\"messages\":[]}", "messages", ERR_INVALID, "empty"},
    {MESSAGES, MSG("5"), "messages", ERR_INVALID, "'messages.0'"},
    {MESSAGES, MSG("{\"role\":\"bot\",\"content\":\"a\"}"), "messages", ERR_INVALID, ".role"},
    {MESSAGES, MSG("{\"role\":[],\"content\":\"a\"}"), "messages", ERR_INVALID, ".role"},
    {MESSAGES, MSG("{\"role\":\"user\"}"), "messages", ERR_INVALID, "messages.0.content"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":[]}"), "messages", ERR_INVALID, "empty"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":[5]}"), "messages", ERR_INVALID, "content.0'"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":[{}]}"), "messages", ERR_INVALID, "0.type'"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), "messages",
     ERR_INVALID, "0.text'"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{}}]}"),
     "messages", ERR_UNSUPPORTED, "'image'"},
    {MESSAGES, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"tool_use\"}]}"), "messages",
     ERR_INVALID, "assistant"},
    {MESSAGES, MSG("{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_result\"}]}"), "messages",
     ERR_INVALID, "user"},
    {MESSAGES,
     MSG("{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"i\","
         "\"name\":\"f\",\"input\":\"{}\"}]}"),
     "messages", ERR_INVALID, "0.input' must be an object"},
    {MESSAGES,
     MSG("{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\","
         "\"content\":[{\"type\":\"image\"}]}]}"),
     "messages", ERR_UNSUPPORTED, "content.0.content.0"},
    {MESSAGES, "{\"system\":5," ASK "}", "system", ERR_INVALID, "not whole number"},
    {MESSAGES, "{\"system\":[{\"type\":\"image\"}]," ASK "}", "system", ERR_UNSUPPORTED, "image"},
    {MESSAGES, "{\"stop_sequences\":\"a\"," ASK "}", "stop_sequences", ERR_INVALID, "list"},
    {MESSAGES, "{\"stop_sequences\":[5]," ASK "}", "stop_sequences", ERR_INVALID, "list"},
    {MESSAGES, "{\"stop_sequences\":[\"\"]," ASK "}", "stop_sequences", ERR_INVALID, "bytes"},
    {MESSAGES, "{\"tools\":{}," ASK "}", "tools", ERR_INVALID, "list"},
    {MESSAGES, "{\"tools\":[5]," ASK "}", "tools", ERR_INVALID, "tools.0"},
    {MESSAGES, "{\"tools\":[{\"name\":\"f\"}]," ASK "}", "tools", ERR_INVALID, "input_schema"},
    {MESSAGES, "{\"tools\":[{\"name\":\"\",\"input_schema\":{}}]," ASK "}", "tools", ERR_INVALID,
     "name"},
    {MESSAGES, "{\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]," ASK "}", "tools",
     ERR_UNSUPPORTED, "bash_20250124"},
    {MESSAGES, "{\"tool_choice\":\"auto\"," ASK "}", "tool_choice", ERR_INVALID, "object"},
    {MESSAGES, "{\"tool_choice\":{\"type\":\"x\"}," ASK "}", "tool_choice", ERR_INVALID, "any"},
    {MESSAGES, "{\"tool_choice\":{\"type\":\"tool\"}," ASK "}", "tool_choice", ERR_INVALID, "name"},
    {MESSAGES, "{\"thinking\":true," ASK "}", "thinking", ERR_INVALID, "object"},
    {MESSAGES, "{\"thinking\":{\"type\":\"x\"}," ASK "}", "thinking", ERR_INVALID, "adaptive"},
    {MESSAGES, "{\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":\"x\"}," ASK "}", "thinking",
     ERR_INVALID, "budget_tokens"},
    {MESSAGES, "{\"output_config\":{\"format\":{\"type\":\"xml\"}}," ASK "}", "output_config",
     ERR_INVALID, "json_schema"},
    {MESSAGES, "{\"metadata\":5," ASK "}", "metadata", ERR_INVALID, "object"},
    {MESSAGES, "{\"mcp_servers\":[{}]," ASK "}", "mcp_servers", ERR_UNSUPPORTED, "mcp_servers"},
    {MESSAGES, "{\"chat_template_kwargs\":5," ASK "}", "chat_template_kwargs", ERR_INVALID, "obj"},

    {RESPONSES, "{}", "input", ERR_INVALID, "required"},
    {RESPONSES, "{\"input\":5}", "input", ERR_INVALID, "not whole number"},
    {RESPONSES, "{\"input\":[]}", "input", ERR_INVALID, "empty"},
    {RESPONSES, INPUT("5"), "input", ERR_INVALID, "input[0]"},
    {RESPONSES, INPUT("{}"), "input", ERR_INVALID, "role"},
    {RESPONSES, INPUT("{\"type\":5}"), "input", ERR_INVALID, "input[0].type"},
    {RESPONSES, INPUT("{\"type\":\"web_search_call\"}"), "input", ERR_UNSUPPORTED, "web_search"},
    {RESPONSES, INPUT("{\"type\":\"item_reference\",\"id\":\"x\"}"), "input", ERR_UNSUPPORTED,
     "does not store"},
    {RESPONSES, INPUT("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}"), "input",
     ERR_UNSUPPORTED, "input_image"},
    {RESPONSES, INPUT("{\"role\":\"user\",\"content\":[]}"), "input", ERR_INVALID, "empty"},
    {RESPONSES, INPUT("{\"role\":\"user\"}"), "input", ERR_INVALID, "content"},
    {RESPONSES, INPUT("{\"type\":\"function_call\",\"call_id\":\"i\",\"name\":\"f\"}"), "input",
     ERR_INVALID, "arguments"},
    {RESPONSES, INPUT("{\"type\":\"function_call_output\",\"call_id\":\"i\"}"), "input",
     ERR_INVALID, "output"},
    {RESPONSES, INPUT("{\"type\":\"reasoning\"}"), "input", ERR_INVALID, "summary"},
    {RESPONSES, "{\"instructions\":[],\"input\":\"a\"}", "instructions", ERR_INVALID, "string"},
    {RESPONSES, "{\"max_output_tokens\":0}", "max_output_tokens", ERR_INVALID, "from 1 on"},
    {RESPONSES, "{\"tools\":[{\"type\":\"colour\"}]}", "tools", ERR_UNSUPPORTED, "colour"},
    {RESPONSES, "{\"tools\":[{\"type\":\"custom\"}]}", "tools", ERR_INVALID, "tools[0].name"},
    {RESPONSES, "{\"tools\":[{\"type\":\"namespace\",\"name\":\"s\"}]}", "tools", ERR_INVALID,
     "tools[0].tools"},
    {RESPONSES,
     "{\"tools\":[{\"type\":\"namespace\",\"name\":\"s\",\"tools\":[{\"type\":\"web_search\"}]}]}",
     "tools", ERR_UNSUPPORTED, "tools[0].tools[0]"},
    {RESPONSES, INPUT("{\"type\":\"custom_tool_call\",\"call_id\":\"i\",\"name\":\"f\"}"), "input",
     ERR_INVALID, "input[0].input"},
    {RESPONSES, "{\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":5}]}", "tools",
     ERR_INVALID, "parameters"},
    {RESPONSES, "{\"tool_choice\":\"x\"}", "tool_choice", ERR_INVALID, "required"},
    {RESPONSES, "{\"tool_choice\":5}", "tool_choice", ERR_INVALID, "not whole number"},
    {RESPONSES, "{\"tool_choice\":{\"type\":\"mcp\"}}", "tool_choice", ERR_UNSUPPORTED, "function"},
    {RESPONSES, "{\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\"}}", "tool_choice",
     ERR_INVALID, "tool_choice.tools"},
    {RESPONSES,
     "{\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":["
     "{\"type\":\"mcp\"}]}}",
     "tool_choice", ERR_UNSUPPORTED, "mcp"},
    {RESPONSES, "{\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[5]}}",
     "tool_choice", ERR_INVALID, "tools[0].type"},
    {RESPONSES, "{\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\"}}}", "text",
     ERR_INVALID, "schema"},
    {RESPONSES, "{\"text\":{\"format\":5}}", "text", ERR_INVALID, "text.format"},
    {RESPONSES, "{\"reasoning\":{\"effort\":\"x\"}}", "reasoning", ERR_INVALID, "effort"},
    {RESPONSES, "{\"metadata\":{\"a\":1}}", "metadata", ERR_INVALID, "strings"},
    {RESPONSES, "{\"include\":[5]}", "include", ERR_INVALID, "strings"},
    {RESPONSES, "{\"truncation\":\"some\"}", "truncation", ERR_INVALID, "truncation"},
    {RESPONSES, "{\"store\":1}", "store", ERR_INVALID, "true or false"},
    {RESPONSES, "{\"previous_response_id\":\"resp_1\"}", "previous_response_id", ERR_UNSUPPORTED,
     "does not store"},
    {RESPONSES, "{\"conversation\":\"c\"}", "conversation", ERR_UNSUPPORTED, "does not store"},
    {RESPONSES, "{\"background\":true}", "background", ERR_UNSUPPORTED, "background"},
    {RESPONSES, "{\"prompt\":{\"id\":\"p\"}}", "prompt", ERR_UNSUPPORTED, "prompt"},
    {RESPONSES, "{\"top_logprobs\":21}", "top_logprobs", ERR_INVALID, "at most 20"},
    {RESPONSES, "{\"top_logprobs\":-1}", "top_logprobs", ERR_INVALID, "at most 20"},
    {RESPONSES, "{\"top_logprobs\":\"3\"}", "top_logprobs", ERR_INVALID, "whole number"},
};

static int translate(int api, struct json *chat, struct arena *a, const char *text,
                     struct reason *reason)
{
    const struct json *body = NULL;

    must_ok(json_parse(&body, a, text, strlen(text), reason->text, sizeof reason->text));
    *reason = (struct reason){.text = ""};
    if (api == MESSAGES)
        return translate_messages(chat, a, body, false, reason);
    return translate_responses(chat, a, &(struct translate_responses_in){.body = body}, reason);
}

int main(void)
{
    struct arena a = {0};
    const struct json *body = NULL;
    struct json chat;
    struct reason reason = {.text = ""};

    for (size_t i = 0; i < sizeof meant / sizeof meant[0]; i++) {
        struct buf out = {0};
        int rc = translate(meant[i].api, &chat, &a, meant[i].body, &reason);

        is_int(rc, ERR_OK, "taken: %s (%s)", meant[i].body, reason.text);
        if (rc == ERR_OK)
            json_write(&out, &chat, JSON_COMPACT);
        is_text(out.bytes, meant[i].chat, "and meant");
        buf_fini(&out);
        arena_reset(&a);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        int rc = translate(refused[i].api, &chat, &a, refused[i].body, &reason);

        is_int(rc, refused[i].rc, "refused: %s", refused[i].body);
        is_text(reason.param, refused[i].param, "by its name");
        ok(strstr(reason.text, refused[i].word) != NULL, "and says of '%s': %s", refused[i].word,
           reason.text);
        arena_reset(&a);
    }
    must_ok(json_parse(&body, &a, "{" USER "}", strlen("{" USER "}"), NULL, 0));
    is_int(translate_messages(&chat, &a, body, true, &reason), ERR_OK,
           "a count needs no max_tokens");
    a.limit_bytes = a.used_bytes + 100;
    is_int(translate_messages(&chat, &a, body, true, &reason), ERR_NO_MEMORY, "no memory");
    arena_reset(&a);
    return tap_done();
}
