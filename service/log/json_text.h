// Texts as JSON, for logs and pages: they may hold names that a client has chosen, and people read them on terminals
// and in browsers.
#pragma once

#include <string>
#include <string_view>

namespace sortition::server {

// Appends `text`, which is UTF-8, within quotes. Escapes quotes and backslashes, and every character that steers a
// terminal or the direction of a line: control characters (C0, DEL and C1), separators of lines and paragraphs, and
// marks, overrides and isolates of direction. A reader of JSON gets the text as it was.
void AppendJsonText(std::string_view text, std::string* out);

// Appends `number`; null if it is not finite.
void AppendJsonNumber(double number, std::string* out);

}  // namespace sortition::server
