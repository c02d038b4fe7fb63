package guard

import (
	"context"
	"slices"
	"strings"
)

// gathering is a Tool that puts off what is to be written, so that one program writes it all: to start programs is most of what
// the guard takes. It reads what is there before that: no part looks at what another one writes.
type gathering struct {
	Tool
	lines strings.Builder
	read  map[[2]string][]string // rules by table and chain
}

// Restore implements Tool.
func (w *gathering) Restore(_ context.Context, input string) error {
	w.lines.WriteString(input)
	return nil
}

// Rules implements Tool: parts have base chains in common, which are read once.
func (w *gathering) Rules(ctx context.Context, table, chain string) (rules []string, err error) {
	at := [2]string{table, chain}
	rules, known := w.read[at]
	if !known {
		rules, err = w.Tool.Rules(ctx, table, chain)
		w.read[at] = rules
	}
	return slices.Clone(rules), err
}

// atOnce calls do for parts with a tool that puts off what is to be written, and then writes it. Each part is a transaction
// of its own all the same. Where something is refused it is as if nothing was known to be done: to do it part by part
// finds out which, and what is done twice changes nothing.
func (g *legacy) atOnce(ctx context.Context, tool Tool, parts []*part, do func(tool Tool, p *part) error) error {
	before := make([]part, len(parts))
	for i, p := range parts {
		before[i] = *p
	}
	w := &gathering{Tool: tool, read: map[[2]string][]string{}}
	var err error
	for _, p := range parts {
		if err == nil {
			err = do(w, p)
		}
	}
	if err == nil && w.lines.Len() > 0 {
		err = tool.Restore(ctx, w.lines.String())
	}
	if err != nil {
		for i, p := range parts {
			*p = before[i]
		}
	}
	return err
}
