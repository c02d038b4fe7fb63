package probe

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"vipd/balancer"
)

// Hidden replaces secrets in texts.
const Hidden = "(hidden)"

// minSecret is the minimum length of an argument that is treated as a secret. Hiding shorter
// arguments would make answers unreadable.
const minSecret = 4

// secretHeader reports whether the values of headers with this name are secret.
func secretHeader(name string) bool {
	return regexp.MustCompile(`(?i)auth|cookie|token|secret|key|passw|credential`).MatchString(name)
}

// WithoutSecrets returns a service's table, as encoded by balancer.EncodeService, without the data
// that its health checks send and the values of their secret headers.
func WithoutSecrets(definition map[string]any) map[string]any {
	checks, checked := definition["health"]
	if !checked {
		return definition
	}
	definition = maps.Clone(definition)
	definition["health"] = redact(checks, func(field string) bool { return field == "send" || field == "send_hex" })
	return definition
}

// redact returns a copy of value in which the values of fields that secret selects are replaced
// with Hidden.
func redact(value any, secret func(field string) bool) any {
	switch value := value.(type) {
	case []any:
		out := make([]any, len(value))
		for i := range value {
			out[i] = redact(value[i], secret)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(value))
		for field, v := range value {
			switch {
			case secret(field):
				out[field] = Hidden
			case field == "headers":
				out[field] = redact(v, secretHeader)
			default:
				out[field] = redact(v, secret)
			}
		}
		return out
	}
	return value
}

// secretsOf returns the secrets in a valid definition that answers may repeat: header values, and
// arguments in the data that a check sends.
func secretsOf(h *balancer.Health) []string {
	var secrets []string
	for name, value := range h.Headers {
		if value != "" && secretHeader(name) {
			secrets = append(secrets, value)
		}
	}
	for _, s := range append([]balancer.HealthStep{{Send: h.Send}}, h.Steps...) {
		sent, _ := s.Request()
		secrets = append(secrets, arguments(string(sent))...)
	}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // longest first, because a secret may contain a shorter one
	return secrets
}

// arguments returns the words of a text that may be secret: all words after the first word of each
// line, which is usually a command. If a line has only one word, that word may be a secret, for
// example the answer to a prompt.
func arguments(text string) (secrets []string) {
	for line := range strings.Lines(text) {
		words := strings.FieldsFunc(line, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`"'`, r) })
		if len(words) > 1 {
			words = words[1:]
		}
		for _, w := range words {
			if len(w) >= minSecret {
				secrets = append(secrets, w)
			}
		}
	}
	return secrets
}

// withoutSecrets returns a copy of data in which each secret is replaced with Hidden.
func withoutSecrets(data []byte, secrets []string) []byte {
	for _, s := range secrets {
		data = bytes.ReplaceAll(data, []byte(s), []byte(Hidden))
	}
	return data
}
