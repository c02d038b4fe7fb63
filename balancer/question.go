package balancer

import (
	"fmt"
	"slices"
	"strings"
)

// Question is the question that a DNS check sends.
type Question struct {
	// Name ends in a dot.
	Name string
	// Type is a DNS record type that questionTypes returns.
	Type string
}

// questionTypes are the record types that a DNS check can request.
func questionTypes() []string {
	return []string{"A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"}
}

// ParseQuestion parses a query in the form "NAME [TYPE]". The default type is A.
func ParseQuestion(query string) (Question, error) {
	words := strings.Fields(query)
	if len(words) == 1 {
		words = append(words, "A")
	}
	if len(words) != 2 {
		return Question{}, fmt.Errorf(`%q is not a name and a type, such as "example.com AAAA"`, query)
	}
	q := Question{Name: strings.TrimSuffix(words[0], ".") + ".", Type: strings.ToUpper(words[1])}
	if !slices.Contains(questionTypes(), q.Type) {
		return Question{}, fmt.Errorf("%q is not a supported record type; the types are %s", words[1], strings.Join(questionTypes(), ", "))
	}
	if !isQuestionName(q.Name) {
		return Question{}, fmt.Errorf(`%q is not a valid DNS name, such as "example.com"`, words[0])
	}
	return q, nil
}

// isQuestionName reports whether a name that ends in a dot fits into a DNS question. Each label
// must have 1 to 63 bytes, and the encoded name at most 255 bytes. The server decides which
// characters are valid.
func isQuestionName(name string) bool {
	const maxLength, maxPart = 254, 63
	if name == "." {
		return true
	}
	if len(name) > maxLength {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if part == "" || len(part) > maxPart {
			return false
		}
	}
	return true
}
