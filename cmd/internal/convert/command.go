package convert

import (
	"cmp"
	"strings"
)

// commandOf returns the command for an exec check. It splits the origin's words like a shell. If
// they contain the server's address, the command runs a shell that substitutes the endpoint's
// address for this address.
func commandOf(words []string, server string) []any {
	text := words
	if len(words) == 1 {
		text = shellWords(words[0])
	} else {
		for i, w := range words {
			if strings.ContainsAny(w, " \t") {
				words[i] = `"` + w + `"`
			}
		}
		text = shellWords(strings.Join(words, " "))
	}
	command := make([]any, len(text))
	quoted := make([]string, len(text))
	hasServer := false
	for i, w := range text {
		command[i] = w
		quoted[i] = shellQuote(w)
		escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`", "$", `\$`).Replace(w)
		if replaced := replaceAddress(escaped, server, "$VIPD_ADDRESS"); replaced != escaped {
			hasServer = true
			quoted[i] = `"` + replaced + `"`
		}
	}
	if !hasServer {
		return command
	}
	return []any{"/bin/sh", "-c", "exec " + strings.Join(quoted, " ")}
}

func shellWords(text string) []string {
	words, _ := splitWords(text, nil, "")
	return words
}

// splitWords splits text into words. Quotes and backslashes preserve spaces. escapes maps letters
// after a backslash to characters. Outside quotes, any character in comment starts a comment, which
// ends the text. open reports whether a closing quote is missing.
func splitWords(text string, escapes map[rune]rune, comment string) (words []string, open bool) {
	var word strings.Builder
	inWord, quote := false, rune(0)
	runes := []rune(text)
	for i := 0; i < len(runes); i++ {
		c := runes[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'' && i+1 < len(runes):
			i++
			word.WriteRune(cmp.Or(escapes[runes[i]], runes[i]))
			inWord = true
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		case quote == 0 && strings.ContainsRune(comment, c):
			i = len(runes)
		case quote == 0 && c <= ' ':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, quote != 0
}

func shellQuote(word string) string {
	plainByte := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@%+", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plainByte(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// replaceAddress replaces each occurrence of address in text with the text in with, except inside a
// longer address or word.
func replaceAddress(text, address, with string) string {
	if address == "" {
		return text
	}
	isPart := func(c byte) bool {
		return c == '.' || c == ':' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	var out strings.Builder
	for {
		i := strings.Index(text, address)
		if i < 0 {
			out.WriteString(text)
			return out.String()
		}
		end := i + len(address)
		before := i > 0 && isPart(text[i-1])
		after := end < len(text) && isPart(text[end]) && !(text[end] == ':' && strings.Contains(address, "."))
		out.WriteString(text[:i])
		if before || after {
			out.WriteString(address)
		} else {
			out.WriteString(with)
		}
		text = text[end:]
	}
}
