package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// samples maps the names of one backend's rows to their values, one value per round.
type samples map[string][]float64

// figure is a cell of the table: a row's result for one backend.
type figure struct {
	Row     string
	Backend backend
	Unit    string
	// Value is the median of the rounds; Low and High are their quartiles.
	Value, Low, High float64
	// Against is the name of the row that Ratio compares with. Ratio is the median of the rounds'
	// ratios, with its quartiles.
	Against                    string
	Ratio, RatioLow, RatioHigh float64
	// Limit is the maximum of Ratio or, without a ratio, of Value; 0 means no limit.
	Limit float64
	// Within reports whether the limit is met.
	Within bool
}

// figures computes one backend's figures. It omits rows without samples.
func figures(rows []row, b backend, all samples) (out []figure) {
	for _, r := range rows {
		values := all[r.name]
		if len(values) == 0 {
			continue
		}
		unit, _ := r.what.unit()
		f := figure{Row: r.name, Backend: b, Unit: unit, Limit: r.limits[slices.Index(backends(), b)]}
		f.Low, f.Value, f.High = quartiles(values)
		judged := f.Value
		if base := all[r.against]; len(base) == len(values) {
			ratios, above := make([]float64, len(values)), all[r.above]
			if above == nil {
				above = make([]float64, len(values))
			}
			for i := range values {
				ratios[i] = (values[i] - above[i]) / (base[i] - above[i])
			}
			f.Against = r.against
			f.RatioLow, f.Ratio, f.RatioHigh = quartiles(ratios)
			judged = f.Ratio
		}
		f.Within = f.Limit == 0 || judged <= f.Limit
		out = append(out, f)
	}
	return out
}

// quartiles returns the quartiles and the median of a non-empty list. It does not change the list.
func quartiles(values []float64) (low, middle, high float64) {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/4], sorted[len(sorted)/2], sorted[len(sorted)*3/4]
}

// printTable prints figures as a Markdown table: a line for each row, a column for each backend.
func printTable(w io.Writer, columns []backend, rows []row, all []figure) {
	fmt.Fprint(w, "\n| |")
	for _, b := range columns {
		fmt.Fprintf(w, " %s |", b)
	}
	fmt.Fprintf(w, " against |\n|---|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, r := range rows {
		fmt.Fprintf(w, "| %s |", r.name)
		for _, b := range columns {
			i := slices.IndexFunc(all, func(f figure) bool { return f.Row == r.name && f.Backend == b })
			if i < 0 {
				fmt.Fprint(w, " - |")
				continue
			}
			fmt.Fprintf(w, " %s |", all[i].cell(r.what))
		}
		fmt.Fprintf(w, " %s |\n", r.against)
	}
}

// cell formats a figure: "4.81 us, 1.24 x (1.22 to 1.26), at most 1.6".
func (f *figure) cell(what measure) string {
	_, decimals := what.unit()
	s := fmt.Sprintf("%.*f", decimals, f.Value)
	if what.isCount() {
		s = group(int(f.Value))
	}
	if f.Unit != "" {
		s += " " + f.Unit
	}
	if f.Ratio != 0 {
		s += fmt.Sprintf(", %.2f x (%.2f to %.2f)", f.Ratio, f.RatioLow, f.RatioHigh)
	} else if f.High > f.Low {
		s += fmt.Sprintf(" (%.*f to %.*f)", decimals, f.Low, decimals, f.High)
	}
	if f.Limit != 0 {
		s += ", at most " + limit(f.Limit, what)
	}
	if !f.Within {
		s = "**" + s + "**"
	}
	return s
}

// limit formats a limit, as a number for a ratio, and in its unit for a value.
func limit(v float64, what measure) string {
	if what.isCount() {
		return group(int(v))
	}
	return fmt.Sprintf("%g", v)
}
