document.querySelectorAll("table.sortable thead button").forEach(function (button) {
  button.addEventListener("click", function () {
    var head = button.closest("th"), row = head.parentNode, body = head.closest("table").tBodies[0];
    var column = Array.prototype.indexOf.call(row.children, head);
    var down = head.getAttribute("aria-sort") === "ascending";
    Array.prototype.forEach.call(row.children, function (one) { one.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    var key = function (line) {
      var cell = line.children[column], value = cell.getAttribute("data-value");
      return value === null ? cell.textContent : value === "" ? null : Number(value);
    };
    Array.from(body.rows).map(function (line) { return [key(line), line]; }).sort(function (a, b) {
      if (a[0] === null || b[0] === null) { return (a[0] === null) - (b[0] === null); }
      var order = typeof a[0] === "number" ? a[0] - b[0] : a[0].localeCompare(b[0], undefined, { numeric: true });
      return down ? -order : order;
    }).forEach(function (pair) { body.appendChild(pair[1]); });
  });
});
function hintAtMore() {
  document.querySelectorAll(".wide").forEach(function (box) {
    var more = box.scrollWidth > box.clientWidth + 1;
    box.classList.toggle("scrolls", more);
    box.previousElementSibling.classList.toggle("shown", more);
  });
}
window.addEventListener("resize", hintAtMore);
hintAtMore();
