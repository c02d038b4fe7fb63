package tomlfile

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/snap"
)

// merge makes one set of services, and one of settings of addresses, of what the files define, with work only for what
// changed.
type merge struct {
	// main sorts before all other files.
	main string
	// files are those that are merged.
	files map[string]*contents
	// faulty are the files with problems.
	faulty   map[string]bool
	services merged[balancer.Name, balancer.Service]
	vips     merged[netip.Addr, balancer.VIP]
}

func newMerge(main string) *merge {
	m := &merge{main: main, files: map[string]*contents{}, faulty: map[string]bool{}}
	m.services = newMerged(m.compare, func(path string) map[balancer.Name]definition[balancer.Service] { return m.files[path].services })
	m.vips = newMerged(m.compare, func(path string) map[netip.Addr]definition[balancer.VIP] { return m.files[path].vips })
	return m
}

// compare orders files: the main file first, then by path.
func (m *merge) compare(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == m.main:
		return -1
	case b == m.main:
		return 1
	}
	return cmp.Compare(a, b)
}

// put makes fresh the contents of the file at path; nil means it is gone. What follows from that waits for settle.
func (m *merge) put(path string, fresh *contents) {
	old := m.files[path]
	if old == fresh {
		return
	}
	old = cmp.Or(old, &contents{})
	m.files[path] = fresh
	if fresh == nil {
		delete(m.files, path)
		fresh = &contents{}
	}
	if delete(m.faulty, path); len(fresh.problems) > 0 {
		m.faulty[path] = true
	}
	m.services.put(path, old.services, fresh.services)
	m.vips.put(path, old.vips, fresh.vips)
}

// settle takes each changed table from the file that holds it. Hold keeps those that no file defines any more.
func (m *merge) settle(hold bool) {
	m.services.settle(hold)
	m.vips.settle(hold)
}

// problems are those of all files, and those between them, in no particular order.
func (m *merge) problems() []balancer.Problem {
	var problems []balancer.Problem
	for path := range m.faulty {
		problems = append(problems, m.files[path].problems...)
	}
	problems = m.services.contests(problems, func(name balancer.Name) balancer.Problem { return balancer.Problem{Service: name} })
	return m.vips.contests(problems, func(a netip.Addr) balancer.Problem { return balancer.Problem{Field: decode.Join("vips", a.String())} })
}

// merged is one kind of tables, of all files.
type merged[K snap.Ordered[K], V any] struct {
	// compare orders files, and tables are those of the file at a path.
	compare func(a, b string) int
	tables  func(path string) map[K]definition[V]
	// claims are the files that define a table, in order; it has at least one.
	claims map[K][]string
	// holders says which of them it is taken from, and contested are the tables with several.
	holders   map[K]string
	contested map[K]bool
	// changed are the tables that settle has to look at.
	changed map[K]bool
	// held are the tables that no file defines any more and that stay because of an error.
	held map[K]bool
	// values are what is merged: of each table the last good state.
	values snap.Map[K, *V]
}

func newMerged[K snap.Ordered[K], V any](compare func(a, b string) int, tables func(string) map[K]definition[V]) merged[K, V] {
	return merged[K, V]{
		compare: compare, tables: tables,
		claims: map[K][]string{}, holders: map[K]string{}, contested: map[K]bool{}, changed: map[K]bool{}, held: map[K]bool{},
	}
}

// put takes in that the file at path defines fresh where it defined old.
func (m *merged[K, V]) put(path string, old, fresh map[K]definition[V]) {
	for key := range old {
		if _, still := fresh[key]; !still {
			m.claims[key] = slices.DeleteFunc(m.claims[key], func(p string) bool { return p == path })
			m.changed[key] = true
		}
	}
	for key := range fresh {
		if _, had := old[key]; !had {
			i, _ := slices.BinarySearchFunc(m.claims[key], path, m.compare)
			m.claims[key] = slices.Insert(m.claims[key], i, path)
		}
		m.changed[key] = true
	}
}

// settle takes each changed table from the file that holds it. One that went from one file to another is not gone in between, and
// one that says the same as before keeps its pointer, also in that file, so that it is in memory once. Hold keeps the tables that no
// file defines any more, until a call without it.
func (m *merged[K, V]) settle(hold bool) {
	if !hold {
		maps.Copy(m.changed, m.held)
	}
	for key := range m.changed {
		claims := m.claims[key]
		delete(m.held, key)
		if delete(m.contested, key); len(claims) > 1 {
			m.contested[key] = true
		}
		if len(claims) == 0 {
			delete(m.claims, key)
			delete(m.holders, key)
			if hold && m.values.Has(key) {
				m.held[key] = true
			} else {
				m.values = m.values.Delete(key)
			}
			continue
		}
		if !slices.Contains(claims, m.holders[key]) {
			m.holders[key] = claims[0]
		}
		tables := m.tables(m.holders[key])
		d, former := tables[key], m.values.At(key)
		switch {
		case d.value == nil:
		case reflect.DeepEqual(former, d.value):
			d.value = former
			tables[key] = d
		default:
			m.values = m.values.Set(key, d.value)
		}
	}
	m.changed = map[K]bool{}
}

// contests adds a problem for each table that another file has too, from which it is taken; about says which table that is.
func (m *merged[K, V]) contests(problems []balancer.Problem, about func(K) balancer.Problem) []balancer.Problem {
	for key := range m.contested {
		holder := m.holders[key]
		for _, path := range m.claims[key] {
			if path == holder {
				continue
			}
			p := about(key)
			p.Severity, p.Origin = balancer.SeverityError, m.tables(path)[key].origin
			p.Text = fmt.Sprintf("is defined at %s:%d too, and taken from there; rename or remove one of the two", holder, m.tables(holder)[key].origin.Line)
			problems = append(problems, p)
		}
	}
	return problems
}
