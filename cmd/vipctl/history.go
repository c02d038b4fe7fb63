package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/cli"
	"vipd/cmd/internal/lists"
	"vipd/cmd/internal/table"
	"vipd/cmd/internal/tomltext"
	"vipd/store/etcd"
	"vipd/store/etcd/definitions"
)

func historyVerb() *cli.Verb {
	return &cli.Verb{
		Name: "history", Args: "SERVICE [N]", Brief: "list the last versions of a service in etcd, with author and time",
		About: `Lists the last 20 versions of a service in etcd, oldest first, with the
author, the time, and the changes or the version that was restored. A version
without an author was not written by vipctl. With N, it prints version N as a
services file.

"vipctl rollback SERVICE N" restores version N.`,
		Example: "vipctl history web",
		Formats: []string{cli.FormTable, cli.FormWide, cli.FormJSON}, Fleet: true,
		MinArgs: 1, MaxArgs: 2,
		Complete: cli.InTurn(fleetNames, textNumbers), Run: runHistory,
	}
}

func rollbackVerb() *cli.Verb {
	return &cli.Verb{
		Name: "rollback", Args: "SERVICE N", Brief: "restore an earlier version of a service in etcd",
		About: "Restores version N of \"vipctl history SERVICE\", even if the service was removed. Nothing is written if another service " +
			"now has the address and port, or if someone else changes the service at the same time. The rollback becomes a new " +
			"version in the history.",
		Example: "vipctl rollback web 3",
		Flags:   []cli.Flag{dryRunFlag()},
		Formats: []string{cli.FormTable, cli.FormJSON}, Fleet: true,
		MinArgs: 2, MaxArgs: 2,
		Complete: cli.InTurn(fleetNames, textNumbers), Run: cli.Traced(runRollback),
	}
}

// textNumbers returns the version numbers in a service's history.
func textNumbers(c *cli.Call, before []string) []string {
	entries, _ := cli.AskEtcd(c, func(w *etcd.Store, ctx context.Context) ([]definitions.HistoryEntry, error) {
		return w.History(ctx, balancer.Name(before[0]))
	})
	return lists.Mapped(entries, func(e definitions.HistoryEntry) string { return strconv.Itoa(e.N) })
}

// textChange is an entry in a service's history, as JSON.
type textChange struct {
	N  int       `json:"n"`
	At time.Time `json:"at,omitzero"`
	By string    `json:"by,omitempty"`
	// Rollback is the number of the earlier version that a rollback restored, or 0.
	Rollback int                 `json:"rollback,omitempty"`
	Revision int64               `json:"revision,omitempty"`
	What     definitions.Outcome `json:"what"`
	Changed  []fieldDiff         `json:"changed,omitempty"`
	Fields   map[string]any      `json:"fields,omitempty"`
}

func runHistory(c *cli.Call) error {
	entries, err := history(c)
	if err != nil {
		return err
	}
	editions, err := textChanges(entries)
	if err != nil {
		return err
	}
	if len(c.Args) == 2 {
		n, err := textNumber(c, entries)
		if err != nil {
			return err
		}
		return c.Show(editions[n], func() string {
			if editions[n].Fields == nil {
				return fmt.Sprintf("# service %s was removed\n", c.Args[0])
			}
			return tableTOML("services", c.Args[0], editions[n].Fields)
		})
	}
	t := table.New(table.Column{Title: "N", Right: true}, table.Column{Title: "WHEN"}, table.Column{Title: "WHO"},
		table.Column{Title: "CHANGED"}, table.Column{Title: "REVISION", Right: true, Wide: true})
	for _, e := range editions {
		at := ""
		if !e.At.IsZero() {
			at = e.At.Local().Format("2006-01-02 15:04")
		}
		t.Row(strconv.Itoa(e.N), at, e.By, changeText(c.Printer, e), number(e.Revision))
	}
	return c.PrintRows(lists.NonNil(editions), t, "")
}

// history reads the history of the service in the first argument. A second argument must be a
// version number.
func history(c *cli.Call) ([]definitions.HistoryEntry, error) {
	if _, err := strconv.Atoi(c.Argument(1)); err != nil && len(c.Args) == 2 {
		return nil, cli.WrongUse("%q is not the number of a version; for example: %s", c.Args[1], c.Verb.Example)
	}
	w, err := c.Etcd()
	if err != nil {
		return nil, err
	}
	c.Args[0] = plainService(c.Args[0])
	name := balancer.Name(c.Args[0])
	if !name.Valid() {
		return nil, cli.WrongUse("%q is not a service name: names are DNS labels of a-z, 0-9 and -", name)
	}
	entries, err := w.History(c, name)
	if err != nil || len(entries) > 0 {
		return entries, err
	}
	s, err := w.Service(c, name)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return nil, absent("service", string(name), " in etcd", fleetNames(c, nil))
	}
	return nil, fmt.Errorf("service %s has no history: it was not written by vipctl", name)
}

// textNumber returns the index of the entry whose number is the second argument.
func textNumber(c *cli.Call, entries []definitions.HistoryEntry) (int, error) {
	n, _ := strconv.Atoi(c.Args[1])
	at := slices.IndexFunc(entries, func(e definitions.HistoryEntry) bool { return e.N == n })
	if at < 0 {
		return 0, fmt.Errorf("the history of service %s has no version %d: it has %d to %d", c.Args[0], n, entries[0].N, entries[len(entries)-1].N)
	}
	return at, nil
}

// textChanges returns how each entry differs from the previous entry.
func textChanges(entries []definitions.HistoryEntry) ([]textChange, error) {
	var out []textChange
	var before map[string]any
	for i, e := range entries {
		d := textChange{N: e.N, At: e.At, By: e.By, Rollback: e.Rollback, Revision: e.Revision, Fields: e.Fields, What: whatOf(e.Fields, before)}
		if i == 0 && e.N > 1 {
			d.What = "" // the previous version is no longer stored
		}
		if d.What == definitions.Updated {
			var err error
			if d.Changed, err = compareFields(before, e.Fields); err != nil {
				return nil, err
			}
		}
		before = e.Fields
		out = append(out, d)
	}
	return out, nil
}

func whatOf(fields, before map[string]any) definitions.Outcome {
	switch {
	case fields == nil:
		return definitions.Removed
	case before == nil:
		return definitions.Created
	}
	return definitions.Updated
}

// changeText describes an entry's changes. If they don't fit into the column, it lists only the
// field names, or one name and the number of other fields.
func changeText(p *cli.Printer, e textChange) string {
	if e.Rollback > 0 {
		return fmt.Sprintf("rolled back to %d", e.Rollback)
	}
	if e.What != definitions.Updated {
		return string(e.What)
	}
	fields := lists.Mapped(e.Changed, fieldChange)
	if p.Format == cli.FormWide {
		return strings.Join(fields, ", ")
	}
	const width = 34
	text := strings.Join(fields, ", ")
	if table.Width(text) <= width {
		return text
	}
	fields = lists.Mapped(e.Changed, func(d fieldDiff) string { return d.Field })
	if text = strings.Join(fields, ", "); table.Width(text) <= width {
		return text
	}
	return few(p, fields, 1)
}

// fieldChange describes a change to a field in a few words.
func fieldChange(d fieldDiff) string {
	simple := func(v any) (string, bool) {
		switch v.(type) {
		case nil:
			return "-", true
		case []any, map[string]any:
			return "", false
		}
		return fmt.Sprint(v), true
	}
	before, isSimple := simple(d.Runs)
	after, isAlsoSimple := simple(d.Wants)
	if isSimple && isAlsoSimple {
		return d.Field + " " + before + " -> " + after
	}
	gone, come := listChange(d.Runs, d.Wants), listChange(d.Wants, d.Runs)
	parts := lists.Mapped(come, func(entry string) string { return "+" + entry })
	for _, entry := range gone {
		if !slices.Contains(come, entry) {
			parts = append(parts, "-"+entry)
		}
	}
	for i, entry := range parts {
		if slices.Contains(gone, entry[1:]) && entry[0] == '+' {
			parts[i] = "~" + entry[1:] // present before and after, but changed
		}
	}
	return strings.TrimSpace(d.Field + " " + strings.Join(parts, " "))
}

// listChange returns the entries of a list that are missing from the other list or have different
// values there. It returns the name of a table, and the text of any other entry.
func listChange(entries, other any) (names []string) {
	list, _ := entries.([]any)
	rest, _ := other.([]any)
	for _, entry := range list {
		if !slices.ContainsFunc(rest, func(e any) bool { return tomltext.Value(e, "") == tomltext.Value(entry, "") }) {
			names = append(names, entryName(entry))
		}
	}
	return names
}

func entryName(entry any) string {
	t, ok := entry.(map[string]any)
	if !ok {
		return fmt.Sprint(entry)
	}
	for _, field := range []string{"address", "name", "port"} {
		if v, found := t[field]; found {
			return fmt.Sprint(v)
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(t)), "/")
}

func runRollback(c *cli.Call) error {
	entries, err := history(c)
	if err != nil {
		return err
	}
	n, err := textNumber(c, entries)
	if err != nil {
		return err
	}
	old := entries[n]
	name := balancer.Name(c.Args[0])
	if old.Fields == nil {
		return fmt.Errorf("version %d of service %s records its removal: to remove the service, use \"vipctl delete service %s\"", old.N, name, name)
	}
	e := newEdit(c, []definitions.Change{{Name: name, Fields: old.Fields, Rollback: old.N}}, nil)
	e.plan.AllowUnknown = true
	if err := e.read(); err != nil {
		return err
	}
	if err := e.judge(); err != nil {
		return err
	}
	return e.finish(c.Flags.Bool("dry-run"))
}
