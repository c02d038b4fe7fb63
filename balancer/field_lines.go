package balancer

import (
	"fmt"
	"strconv"
	"strings"
)

// FieldLines holds the line numbers of a service's fields in its file, relative to the service's
// own line. Services with the same layout therefore have equal FieldLines. It is a string, so
// definitions that contain it are comparable. The zero value has no lines.
type FieldLines string

// AppendFieldLine appends an entry for the field at path, such as endpoints[2].weight, to the text
// of a FieldLines. The parameter below is the field's line, counted from the service's line. A
// field without an entry has the line of the nearest enclosing field.
func AppendFieldLine(text []byte, path string, below int) []byte {
	text = append(append(text, '\n'), path...)
	return strconv.AppendInt(append(text, ' '), int64(below), 10)
}

func (l FieldLines) below(path string) int {
	for ; l != "" && path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if _, rest, found := strings.Cut(string(l), "\n"+path+" "); found {
			number, _, _ := strings.Cut(rest, "\n")
			n, _ := strconv.Atoi(number) // AppendFieldLine wrote the number
			return n
		}
	}
	return 0
}

// At returns the origin of a field in the definition that starts at o. If the field's own line is
// known, the origin has that line.
func (o Origin) At(field string) Origin {
	o.Line += o.Fields.below(field)
	o.Fields = ""
	return o
}

// Text returns the file and line, or the etcd key and its revision.
func (o Origin) Text() string {
	switch {
	case o.Key != "":
		return fmt.Sprintf("%s, revision %d", o.Key, o.Revision)
	case o.File != "" && o.Line > 0:
		return fmt.Sprintf("%s:%d", o.File, o.Line)
	}
	return o.File
}
