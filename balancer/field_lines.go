package balancer

import (
	"fmt"
	"strconv"
	"strings"
)

// FieldLines holds the lines of a service's fields in its file, relative to the service's line.
// Services with the same layout therefore have equal values, and definitions that contain a
// FieldLines are comparable. The zero value has no lines.
type FieldLines string

// AppendFieldLine appends the line of the field at path, such as endpoints[2].weight, to the text
// of FieldLines. The parameter below is the distance from the service's line. A field without an
// entry has the line of the nearest enclosing field.
func AppendFieldLine(text []byte, path string, below int) []byte {
	text = append(append(text, '\n'), path...)
	return strconv.AppendInt(append(text, ' '), int64(below), 10)
}

// below returns the line of the field at path, relative to the service's line.
func (l FieldLines) below(path string) int {
	for ; l != "" && path != ""; path = path[:max(0, strings.LastIndexAny(path, ".["))] {
		if _, rest, found := strings.Cut(string(l), "\n"+path+" "); found {
			number, _, _ := strings.Cut(rest, "\n")
			n, _ := strconv.Atoi(number) // AppendFieldLine wrote it
			return n
		}
	}
	return 0
}

// At returns the origin of a field of the definition at o, with the field's own line if known.
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
