package probe

import "regexp"

// Secret reports whether the values of headers with this name are secret.
func Secret(header string) bool {
	return regexp.MustCompile(`(?i)auth|cookie|token|secret|key|passw|credential`).MatchString(header)
}
