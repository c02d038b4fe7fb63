package balancer

import (
	"fmt"
	"slices"
	"strings"
)

// Question is what a DNS check asks.
type Question struct {
	// Name ends in a dot.
	Name string
	// Type is one of questionTypes.
	Type string
}

// questionTypes are the types of records that a DNS check can ask for.
func questionTypes() []string {
	return []string{"A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"}
}

// ParseQuestion reads a query as users write it, "NAME [TYPE]"; the type is A where it is left out.
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
		return Question{}, fmt.Errorf("%q is not a type that can be asked for; %s are possible", words[1], strings.Join(questionTypes(), ", "))
	}
	if !isQuestionName(q.Name) {
		return Question{}, fmt.Errorf(`%q is not a name that DNS can have, such as "example.com"`, words[0])
	}
	return q, nil
}

// isQuestionName reports whether a name that ends in a dot fits into a question: parts of 1 to 63 bytes, 255 with the
// lengths before them. Which characters there are is the server's business.
func isQuestionName(name string) bool {
	const longest, longestPart = 254, 63
	if name == "." {
		return true
	}
	if len(name) > longest {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if part == "" || len(part) > longestPart {
			return false
		}
	}
	return true
}
