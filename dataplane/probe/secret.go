package probe

import "regexp"

// Secret reports whether the value of a header of that name is secret.
func Secret(header string) bool {
	return regexp.MustCompile(`(?i)auth|cookie|token|secret|key|passw|credential`).MatchString(header)
}
