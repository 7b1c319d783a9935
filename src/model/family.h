/* Fields of config.json that one family has and others do not: what rows of arch.c name as `read`.
 * Each is called after the common fields are read, with the text model's object, and changes the
 * config. Errors are kept in s. */
#ifndef QUIRE_MODEL_FAMILY_H
#define QUIRE_MODEL_FAMILY_H

#include "model/config_source.h"

void family_cohere(struct config *c, struct config_source *s, const struct json *obj);
void family_cohere2(struct config *c, struct config_source *s, const struct json *obj);
void family_exaone4(struct config *c, struct config_source *s, const struct json *obj);
void family_gemma(struct config *c, struct config_source *s, const struct json *obj);
void family_gemma3(struct config *c, struct config_source *s, const struct json *obj);
void family_glm(struct config *c, struct config_source *s, const struct json *obj);
void family_gpt2(struct config *c, struct config_source *s, const struct json *obj);
void family_gpt_neox(struct config *c, struct config_source *s, const struct json *obj);
void family_granite(struct config *c, struct config_source *s, const struct json *obj);
void family_olmo3(struct config *c, struct config_source *s, const struct json *obj);
void family_opt(struct config *c, struct config_source *s, const struct json *obj);
void family_phi(struct config *c, struct config_source *s, const struct json *obj);
void family_seed_oss(struct config *c, struct config_source *s, const struct json *obj);
void family_smollm3(struct config *c, struct config_source *s, const struct json *obj);
void family_stablelm(struct config *c, struct config_source *s, const struct json *obj);
void family_starcoder2(struct config *c, struct config_source *s, const struct json *obj);

#endif
