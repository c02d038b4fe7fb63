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

// merge combines the definitions of all files into one set of services and one set of address
// settings. Its cost depends on the number of changed tables.
type merge struct {
	// main is the main file, which sorts before all other files.
	main string
	// files holds the merged files.
	files map[string]*contents
	// faulty holds the files with problems.
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

// compare orders files by path. The main file is first.
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

// put sets the contents of the file at path, or removes the file if fresh is nil. The changes take
// effect in settle.
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

// settle applies the changes that put recorded. If hold is set, tables that no file defines remain.
func (m *merge) settle(hold bool) {
	m.services.settle(hold)
	m.vips.settle(hold)
}

// problems returns the problems of all files and of conflicts between them, in no particular order.
func (m *merge) problems() []balancer.Problem {
	var problems []balancer.Problem
	for path := range m.faulty {
		problems = append(problems, m.files[path].problems...)
	}
	problems = m.services.contests(problems, func(name balancer.Name) balancer.Problem { return balancer.Problem{Service: name} })
	return m.vips.contests(problems, func(a netip.Addr) balancer.Problem { return balancer.Problem{Field: decode.Join("vips", a.String())} })
}

// merged combines tables of one kind from all files.
type merged[K snap.Ordered[K], V any] struct {
	// compare orders files. tables returns the tables of the file at a path.
	compare func(a, b string) int
	tables  func(path string) map[K]definition[V]
	// claims lists, for each table, the files that define it, in order. Each list has at least one
	// file.
	claims map[K][]string
	// holders maps each table to the file that provides it. contested holds the tables with several
	// claims.
	holders   map[K]string
	contested map[K]bool
	// changed holds the tables that settle must examine.
	changed map[K]bool
	// held holds the tables that no file defines, but that remain because an error may hide their
	// definitions.
	held map[K]bool
	// values holds the last good state of each table.
	values snap.Map[K, *V]
}

func newMerged[K snap.Ordered[K], V any](compare func(a, b string) int, tables func(string) map[K]definition[V]) merged[K, V] {
	return merged[K, V]{
		compare: compare, tables: tables,
		claims: map[K][]string{}, holders: map[K]string{}, contested: map[K]bool{}, changed: map[K]bool{}, held: map[K]bool{},
	}
}

// put records that the file at path defines fresh instead of old.
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

// settle sets each changed table to the definition in its holder, the file that provides it. A
// table that moves between files is not removed in the meantime. An unchanged table keeps its
// pointer, even in the contents of its file, so it is in memory only once. If hold is set, tables
// that no file defines remain until a call without hold.
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

// contests adds a problem for each table that several files define. The function about returns a
// problem that names the table.
func (m *merged[K, V]) contests(problems []balancer.Problem, about func(K) balancer.Problem) []balancer.Problem {
	for key := range m.contested {
		holder := m.holders[key]
		for _, path := range m.claims[key] {
			if path == holder {
				continue
			}
			p := about(key)
			p.Severity, p.Origin = balancer.SeverityError, m.tables(path)[key].origin
			p.Text = fmt.Sprintf("is also defined at %s:%d, which is used; rename or remove one of the two", holder, m.tables(holder)[key].origin.Line)
			problems = append(problems, p)
		}
	}
	return problems
}
