package balancer

import (
	"fmt"
	"strconv"
	"strings"
)

// FieldLines says where the fields of a service are in its file. It counts from the service's own line, so that services
// that are written alike can share one, and it is a text, so that definitions can be compared. "" knows nothing.
type FieldLines string

// AppendFieldLine adds to the text of FieldLines that the field at path, such as endpoints[2].weight, is so many lines below
// the service's own; a field that is left out is where the nearest around it is.
func AppendFieldLine(text []byte, path string, below int) []byte {
	text = append(append(text, '\n'), path...)
	return strconv.AppendInt(append(text, ' '), int64(below), 10)
}

// below returns how many lines below the service's own the field at path is.
func (l FieldLines) below(path string) int {
	for ; l != "" && path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if _, rest, found := strings.Cut(string(l), "\n"+path+" "); found {
			number, _, _ := strings.Cut(rest, "\n")
			n, _ := strconv.Atoi(number) // AppendFieldLine has written it
			return n
		}
	}
	return 0
}

// At returns the place of a field of the definition at o: its own line where that is known.
func (o Origin) At(field string) Origin {
	o.Line += o.Fields.below(field)
	o.Fields = ""
	return o
}

// Text returns the file and line, or the key and its revision.
func (o Origin) Text() string {
	switch {
	case o.Key != "":
		return fmt.Sprintf("%s, revision %d", o.Key, o.Revision)
	case o.File != "" && o.Line > 0:
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return o.File
}
