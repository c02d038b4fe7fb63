package tomltext

import (
	"testing"

	"github.com/BurntSushi/toml"
)

// TestQuote formats texts as a key and as a value: plain text, quoted text, and every character
// that TOML escapes. A parser must read the same text.
func TestQuote(t *testing.T) {
	texts := []string{"", "web", "a b", `"web"`, `back\slash`, "é", "10.96.0.10"}
	for r := range rune(0x80) {
		texts = append(texts, "a"+string(r)+"b")
	}
	for _, text := range texts {
		var read map[string]string
		line := Key(text) + " = " + Quote(text)
		if _, err := toml.Decode(line, &read); err != nil || len(read) != 1 || read[text] != text {
			t.Errorf("%q is quoted as %s, and decoded as %q, %v", text, line, read, err)
		}
	}
	if got := Quote("caf\xe9"); got != "\"caf\uFFFD\"" {
		t.Errorf("invalid UTF-8 is quoted as %s", got)
	}
}
