// The configuration: a JSON object of texts and whole numbers, read without a library. (The host makes it from TOML: it is well-formed.)
#ifndef CONFIG_H
#define CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum { CONFIG_TEXT, CONFIG_NUMBER, CONFIG_OTHER } config_kind_t;

// One entry. Texts are cut at the size of their field, and end with NUL.
typedef struct {
  char key[64];
  config_kind_t kind;
  char text[2048];
  bool is_cut;
  int64_t number;
} config_entry_t;

// Where in the JSON the reader is.
typedef struct {
  const char *at, *end;
} config_t;

static inline void config_space(config_t *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r' || *c->at == ',' || *c->at == ':')) c->at++;
}

// Four hexadecimal digits.
static inline uint32_t config_hex(config_t *c) {
  uint32_t value = 0;
  for (int i = 0; i < 4 && c->at < c->end; i++, c->at++) {
    const char d = *c->at;
    value = value * 16 + (uint32_t)(d <= '9' ? d - '0' : (d | 32) - 'a' + 10);
  }
  return value;
}

// Reads a string, its opening quote first. Says whether all of it fitted.
static inline bool config_string(config_t *c, char *into, size_t size) {
  size_t len = 0;
  bool fits = true;
  c->at++;
  while (c->at < c->end && *c->at != '"') {
    char utf8[4] = {*c->at++};
    size_t n = 1;
    if (utf8[0] == '\\' && c->at < c->end) {
      const char escape = *c->at++;
      if (escape == 'u') {
        uint32_t code = config_hex(c);
        if (code >= 0xD800 && code < 0xDC00 && c->end - c->at >= 6) {
          c->at += 2;
          code = 0x10000 + ((code - 0xD800) << 10) + (config_hex(c) - 0xDC00);
        }
        if (code < 0x80) {
          utf8[0] = (char)code;
        } else if (code < 0x800) {
          n = 2, utf8[0] = (char)(0xC0 | code >> 6), utf8[1] = (char)(0x80 | (code & 63));
        } else if (code < 0x10000) {
          n = 3, utf8[0] = (char)(0xE0 | code >> 12), utf8[1] = (char)(0x80 | (code >> 6 & 63)), utf8[2] = (char)(0x80 | (code & 63));
        } else {
          n = 4, utf8[0] = (char)(0xF0 | code >> 18), utf8[1] = (char)(0x80 | (code >> 12 & 63));
          utf8[2] = (char)(0x80 | (code >> 6 & 63)), utf8[3] = (char)(0x80 | (code & 63));
        }
      } else {
        utf8[0] = escape == 'n' ? '\n' : escape == 't' ? '\t' : escape == 'r' ? '\r' : escape == 'b' ? '\b' : escape == 'f' ? '\f' : escape;
      }
    }
    if (len + n < size) {
      memcpy(into + len, utf8, n);
      len += n;
    } else {
      fits = false;
    }
  }
  c->at++;
  into[len] = 0;
  return fits;
}

// Skips a value that is neither text nor number, with all that is in it.
static inline void config_skip(config_t *c) {
  int depth = 0;
  char ignored[1];
  do {
    if (*c->at == '"') {
      config_string(c, ignored, sizeof ignored);
      continue;
    }
    if (*c->at == '{' || *c->at == '[') depth++;
    if (*c->at == '}' || *c->at == ']') depth--;
    c->at++;
  } while (c->at < c->end && (depth > 0 || (*c->at != ',' && *c->at != '}')));
}

// The next entry of the object; false: that was all.
static inline bool config_next(config_t *c, config_entry_t *entry) {
  memset(entry, 0, sizeof *entry);
  config_space(c);
  if (c->at < c->end && *c->at == '{') c->at++;
  config_space(c);
  if (c->at >= c->end || *c->at != '"') return false;
  config_string(c, entry->key, sizeof entry->key);
  config_space(c);
  if (c->at >= c->end) return false;
  if (*c->at == '"') {
    entry->kind = CONFIG_TEXT;
    entry->is_cut = !config_string(c, entry->text, sizeof entry->text);
    return true;
  }
  const char *start = c->at;
  const bool negative = *c->at == '-';
  if (negative) c->at++;
  // Beyond 10^15 it is too large for any setting, and stays what it is.
  while (c->at < c->end && *c->at >= '0' && *c->at <= '9') {
    if (entry->number < 1000000000000000) entry->number = entry->number * 10 + (*c->at - '0');
    c->at++;
  }
  const bool is_whole = c->at > start + negative && (c->at == c->end || *c->at == ',' || *c->at == '}' || *c->at == ' ');
  if (negative) entry->number = -entry->number;
  entry->kind = is_whole ? CONFIG_NUMBER : CONFIG_OTHER;
  if (!is_whole) config_skip(c);
  return true;
}

#endif
