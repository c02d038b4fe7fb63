package convert

import (
	"os"
	"slices"
	"strings"
)

// shell interprets the lines of a script that runs ipvsadm. It maps variables to their values.
type shell map[string]string

type shellKind int

const (
	shellNothing shellKind = iota // empty, a comment or a definition
	shellCommand                  // an ipvsadm command
	shellOther                    // another command
	shellHidden                   // runs ipvsadm in a loop, a condition or a list of commands
)

// read returns the kind of a line. For an ipvsadm command, it also returns the words after the
// program's name.
func (s shell) read(text string) ([]string, shellKind) {
	text = strings.TrimSpace(text)
	if text == "" || strings.HasPrefix(text, "#") {
		return nil, shellNothing
	}
	if name, value, found := strings.Cut(text, "="); found && nameLength(name) == len(name) && !strings.ContainsAny(value, "`$ ;&|") {
		s[name] = strings.Trim(value, "\"'")
		return nil, shellNothing
	}
	expanded := os.Expand(text, func(name string) string {
		if value, known := s[name]; known {
			return value
		}
		return "${" + name + "}"
	})
	words := shellWords(expanded)
	for len(words) > 0 && words[0] == "sudo" {
		words = words[1:]
	}
	if i := slices.IndexFunc(words, isShellMark); i >= 0 && !slices.ContainsFunc(words[i:], runsIPVSADM) {
		words = words[:i]
	}
	isCommand := len(words) > 0 && (runsIPVSADM(words[0]) || strings.HasPrefix(words[0], "-"))
	others := words
	if isCommand {
		others = words[1:]
	}
	switch {
	case slices.ContainsFunc(others, runsIPVSADM), len(words) > 1 && strings.HasPrefix(words[0], "$"), s.inBlock(words):
		return nil, shellHidden
	case !isCommand:
		return nil, shellOther
	case runsIPVSADM(words[0]):
		return words[1:], shellCommand
	}
	return words, shellCommand
}

// blockDepth is the map key for the number of open loops and conditions. No variable can have this
// name.
const blockDepth = "{"

// inBlock reports whether a line runs ipvsadm in a loop or a condition.
func (s shell) inBlock(words []string) bool {
	first := ""
	if len(words) > 0 {
		first = words[0]
	}
	switch first {
	case "for", "while", "until", "if", "case":
		s[blockDepth] += "{"
	case "done", "fi", "esac":
		s[blockDepth] = strings.TrimSuffix(s[blockDepth], "{")
	}
	return s[blockDepth] != "" && (runsIPVSADM(first) || strings.HasPrefix(first, "-"))
}

func runsIPVSADM(word string) bool {
	return word == "ipvsadm" || strings.HasSuffix(word, "/ipvsadm") || strings.HasPrefix(word, "ipvsadm-restore")
}

// isShellMark reports whether a word ends a command.
func isShellMark(word string) bool {
	return slices.Contains([]string{"|", "||", "&&", ";", "&", ">", ">>", "2>", "<"}, word) || strings.HasPrefix(word, ">") || strings.HasPrefix(word, "2>") ||
		strings.HasPrefix(word, "<") || strings.HasPrefix(word, "#")
}
