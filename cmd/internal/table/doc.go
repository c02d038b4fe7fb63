// Package table prints rows in columns. It pads cells by their width on a terminal, and prints no
// trailing spaces. Some columns appear only in the wide form.
//
//	t := table.New(table.Column{Title: "NAME"}, table.Column{Title: "ORIGIN", Wide: true})
//	t.Row("web", "/etc/vipd/vipd.toml:12")
//	fmt.Print(t.Text(table.Form{}))
package table
