(function () {
  "use strict";
  document.documentElement.className = "js";
  document.addEventListener("DOMContentLoaded", function () {
    var table = document.getElementById("nodes-table");
    if (table) {
      sortable(table);
      filterable(table);
    }
    openTarget();
    window.addEventListener("hashchange", openTarget);
    printed();
  });

  function sortable(table) {
    var body = table.tBodies[0];
    var collator = new Intl.Collator("en", { numeric: true });
    var heads = Array.prototype.slice.call(table.tHead.rows[0].cells);
    heads.forEach(function (head, column) {
      var button = head.querySelector("button");
      button.disabled = false;
      button.addEventListener("click", function () {
        var first = head.dataset.first || "ascending";
        var other = first === "ascending" ? "descending" : "ascending";
        var order = head.getAttribute("aria-sort") === first ? other : first;
        heads.forEach(function (one) { one.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", order);
        var sign = order === "ascending" ? 1 : -1;
        var keyed = Array.prototype.map.call(body.rows, function (row, place) {
          var cell = row.cells[column];
          return { row: row, key: cell.dataset.key || cell.textContent, name: row.dataset.name, place: place };
        });
        keyed.sort(function (one, two) {
          return sign * collator.compare(one.key, two.key) || collator.compare(one.name, two.name) || one.place - two.place;
        });
        var all = document.createDocumentFragment();
        keyed.forEach(function (one) { all.appendChild(one.row); });
        body.appendChild(all);
      });
    });
  }

  function filterable(table) {
    var words = document.getElementById("filter-words");
    var status = document.getElementById("filter-status");
    var shown = document.getElementById("filter-shown");
    var rows = Array.prototype.map.call(table.tBodies[0].rows, function (row) {
      return { row: row, text: (row.dataset.name + " " + row.textContent).toLowerCase(), status: row.dataset.status };
    });
    function apply() {
      var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      var left = 0;
      rows.forEach(function (one) {
        var bad = status.value === "bad" && ["fail", "unknown", "warn"].indexOf(one.status) >= 0;
        var fits = (status.value === "" || bad || status.value === one.status) &&
          wanted.every(function (word) { return one.text.indexOf(word) >= 0; });
        one.row.hidden = !fits;
        left += fits ? 1 : 0;
      });
      shown.textContent = left + " of " + rows.length + " shown";
    }
    words.addEventListener("input", apply);
    status.addEventListener("change", apply);
    // A browser that goes back has kept what was typed.
    apply();
  }

  function openTarget() {
    var target = document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
    }
  }

  function printed() {
    var opened = [];
    window.addEventListener("beforeprint", function () {
      opened = Array.prototype.filter.call(document.querySelectorAll("details.card"), function (one) { return !one.open; });
      opened.forEach(function (one) { one.open = true; });
    });
    window.addEventListener("afterprint", function () {
      opened.forEach(function (one) { one.open = false; });
    });
  }
}());
