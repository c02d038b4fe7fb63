package tomltext

import (
	"testing"

	"github.com/BurntSushi/toml"
)

// TestQuote formats strings, including each ASCII character, as a key and as a value. A TOML parser
// must return the same string for both.
func TestQuote(t *testing.T) {
	texts := []string{"", "web", "a b", `"web"`, `back\slash`, "é", "10.96.0.10"}
	for r := range rune(0x80) {
		texts = append(texts, "a"+string(r)+"b")
	}
	for _, text := range texts {
		var read map[string]string
		line := Key(text) + " = " + Quote(text)
		if _, err := toml.Decode(line, &read); err != nil || len(read) != 1 || read[text] != text {
			t.Errorf("%q: line = %s, decoded = %q, %v; want the same text as key and value", text, line, read, err)
		}
	}
	if got := Quote("caf\xe9"); got != "\"caf\uFFFD\"" {
		t.Errorf("invalid UTF-8: Quote = %s, want a replacement character", got)
	}
}
