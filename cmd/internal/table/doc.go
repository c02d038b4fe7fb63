// Package table prints rows in columns. It pads by the width on a terminal, prints no trailing
// spaces, and has columns that are only in the wide form.
//
//	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "ORIGIN", Wide: true})
//	t.Row("web", "/etc/vipd/vipd.toml:12")
//	fmt.Print(t.Text(table.Form{}))
package table
