// Package apiserver answers the requests on the API's socket that vipctl sends (cmd/internal/api).
//
//	request -> httpserve -> may the caller change vipd? -> a view of one moment, or a part that does what was requested -> JSON
//
// Package status provides the views. Package apiserver has no state.
package apiserver
